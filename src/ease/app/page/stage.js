// The classes that are about to be taught, with names and images, before anything is sent.

import { model } from "./server.js";
import { isPicture, preview } from "./pictures.js";
import { announce, classes, count, el, find, setText } from "./words.js";

const SHOWN = 7; // previews per class
const FEW = 5; // with fewer images a note recommends more
const FORBIDDEN = /^\.|[/\\"\p{Cc}]/u; // not possible in the name of an uploaded file

const clean = (name) => name.normalize("NFC").trim().replace(/\s+/g, " "); // macOS gives NFD

let next = 0;
let staged = []; // {key, name, files, row}
let adding = null; // the class that chosen images go to

/** Add files, each to the class named like its folder; those without one go to a class without a name. */
export function take(found, into = null) {
  setText("teach-error");
  const pictures = found.filter(({ file }) => isPicture(file));
  const odd = found.length - pictures.length;
  const groups = new Map();
  for (const { file, folder } of pictures) groups.set(folder, [...(groups.get(folder) ?? []), file]);
  let [again, touched] = [0, into];
  for (const [folder, files] of groups) {
    const name = folder === null ? "" : clean(folder);
    touched = into ?? staged.find((entry) => entry.name === name) ?? add(name);
    again += put(touched, files);
  }
  const notes = [];
  if (odd) notes.push(odd === 1 ? "One file is not an image and was left out." : `${odd} files are not images and were left out.`);
  if (again) notes.push(again === 1 ? "One image was already there." : `${again} images were already there.`);
  if (!found.length) notes.push("There was no file in the folder.");
  setText("teach-note", notes.join(" "));
  refresh();
  if (pictures.length) announce(`${classes(staged.length)} ready to learn, ${count(images(), "image")}`);
  if (touched && !touched.name) touched.row.field.focus();
}

/** Add a known class without images, so that images can be added to it. */
export function extend(name) {
  const entry = staged.find((each) => each.name === name) ?? add(name);
  refresh();
  entry.row.more.focus();
}

const images = () => staged.reduce((sum, entry) => sum + entry.files.length, 0);
const same = (a, b) => a.name === b.name && a.size === b.size && a.lastModified === b.lastModified;

function put(entry, files) {
  const fresh = files.filter((file) => !entry.files.some((other) => same(file, other)));
  entry.files.push(...fresh);
  return files.length - fresh.length;
}

function add(name) {
  const entry = { key: (next += 1), name, files: [] };
  entry.row = makeRow(entry);
  staged.push(entry);
  find("stage-list").append(entry.row.element);
  return entry;
}

function drop(entry) {
  const at = staged.indexOf(entry);
  staged = staged.filter((each) => each !== entry);
  entry.row.element.remove();
  refresh();
  announce(`${entry.name || "The class without a name"} removed`);
  (staged[Math.min(at, staged.length - 1)]?.row.field ?? find("teach-choose")).focus();
}

function makeRow(entry) {
  const id = `class-${entry.key}`;
  const field = el("input", { id, type: "text", value: entry.name, autocomplete: "off", maxLength: 100, placeholder: "Name of the class", "aria-describedby": `${id}-note` });
  const number = el("span", { className: "number" });
  const thumbs = el("div", { className: "thumbs", "aria-hidden": "true" });
  const note = el("p", { className: "row-note", id: `${id}-note` });
  const more = el("button", { type: "button", className: "plain" }, "Add images");
  const away = el("button", { type: "button", className: "plain" }, "Remove");
  field.oninput = () => {
    entry.name = clean(field.value);
    refresh();
  };
  field.onchange = () => settle(entry);
  more.onclick = () => {
    adding = entry;
    find("teach-files").click();
  };
  away.onclick = () => drop(entry);
  const element = el(
    "li",
    { className: "staged" },
    el("label", { className: "unseen", for: id }, "Name of the class"),
    field,
    number,
    el("div", { className: "actions" }, more, away),
    thumbs,
    note,
  );
  return { element, field, number, thumbs, note, more, away, shown: 0 };
}

/** After a name was entered: if another staged class has it, merge the two. */
function settle(entry) {
  entry.row.field.value = entry.name;
  const twin = staged.find((each) => each !== entry && each.name && each.name === entry.name);
  if (!twin) return;
  put(twin, entry.files);
  staged = staged.filter((each) => each !== entry);
  entry.row.element.remove();
  setText("teach-note", `Both classes are named “${twin.name}”: their images were merged.`);
  refresh();
}

/** What is missing before this class can be sent, or null. */
function missing(entry) {
  if (!entry.name) return "Enter a name.";
  if (FORBIDDEN.test(entry.name)) return "A name cannot start with a dot or contain / \\ or \".";
  if (!entry.files.length) return "Add images.";
  return null;
}

function remark(entry) {
  const old = model.names.get(entry.name);
  if (old) return `Known already: these images are added to the ${count(old.count, "image")} it was learned from.`;
  const alike = [...model.names.keys()].find((name) => name.toLowerCase() === entry.name.toLowerCase());
  if (alike) return `This is a new class, but there is also “${alike}”. Use exactly that name to add images to it.`;
  if (entry.files.length && entry.files.length < FEW) return "Very few images. Ten or more give better results.";
  return "";
}

function refresh() {
  for (const entry of staged) refreshRow(entry);
  find("stage").hidden = staged.length === 0;
  find("teach-drop").classList.toggle("slim", staged.length > 0);
  const old = staged.filter((entry) => model.names.has(entry.name)).length;
  const fresh = staged.length - old;
  const what = [fresh ? `learn ${count(fresh, "new class", "new classes")}` : "", old ? `add to ${count(old, "known class", "known classes")}` : ""];
  setText("stage-title", `Ready: ${count(images(), "image")}`);
  setText("start", what.filter(Boolean).join(", ").replace(/^./, (letter) => letter.toUpperCase()));
  privacy();
}

function refreshRow({ row, ...entry }) {
  row.number.textContent = count(entry.files.length, "image");
  row.note.textContent = [remark(entry), missing(entry)].filter(Boolean).join(" ");
  row.note.classList.toggle("bad", FORBIDDEN.test(entry.name)); // what is missing is reported at the start
  row.element.classList.toggle("again", model.names.has(entry.name));
  const called = entry.name || "the class without a name";
  row.more.setAttribute("aria-label", `Add images to ${called}`);
  row.away.setAttribute("aria-label", `Remove ${called}`);
  for (; row.shown < Math.min(SHOWN, entry.files.length); row.shown += 1) {
    const canvas = el("canvas", { width: 112, height: 112 });
    row.thumbs.append(canvas);
    preview(entry.files[row.shown], canvas);
  }
  const rest = entry.files.length - row.shown;
  row.thumbs.querySelector(".rest")?.remove();
  if (rest > 0) row.thumbs.append(el("span", { className: "rest" }, `+${rest}`));
}

function privacy() {
  const kept = find("keep-thumbnails").checked;
  setText(
    "privacy",
    kept
      ? "The images are deleted from the server after learning, except for a small picture of each class."
      : "The images are deleted from the server after learning. Only the model itself is kept.",
  );
}

/** Return the classes to send and clear the stage; null if something is missing, which is then shown. */
export function handOver() {
  const stuck = staged.find((entry) => missing(entry));
  if (stuck) {
    stuck.row.field.setAttribute("aria-invalid", "true");
    stuck.row.note.textContent = missing(stuck);
    stuck.row.note.classList.add("bad");
    setText("teach-error", stuck.name ? `“${stuck.name}” is not ready. ${missing(stuck)}` : "One class has no name yet.");
    (stuck.files.length || !stuck.name ? stuck.row.field : stuck.row.more).focus();
    return null;
  }
  const plan = { classes: staged.map(({ name, files }) => ({ name, files })) };
  plan.extend = plan.classes.some(({ name }) => model.names.has(name));
  clear();
  return plan;
}

/** After a failure: put the classes of a plan back, beside those staged meanwhile. */
export function takeBack(plan) {
  for (const { name, files } of plan.classes) put(staged.find((entry) => entry.name === name) ?? add(name), files);
  refresh();
}

function clear() {
  staged = [];
  find("stage-list").replaceChildren();
  setText("teach-note");
  setText("teach-error");
  refresh();
}

/** The class that the chosen images belong to, or null; it is used once. */
export function target() {
  const entry = staged.includes(adding) ? adding : null;
  adding = null;
  return entry;
}

export function setUp() {
  find("stage-clear").onclick = () => {
    clear();
    find("teach-choose").focus();
    announce("All removed");
  };
  find("keep-thumbnails").onchange = privacy;
  find("stage-list").addEventListener("input", ({ target: field }) => field.removeAttribute("aria-invalid"));
  model.addEventListener("change", () => (find("keep-thumbnails").checked = model.now.thumbnails.on), { once: true });
  model.addEventListener("change", refresh);
  model.addEventListener("change", () => (find("tune-choice").hidden = !model.now.tunable));
}
