// What is about to be taught: classes with a name and images, before anything is sent.

import { model } from "./server.js";
import { isPicture, preview } from "./pictures.js";
import { classes, count, el, find, say, tell } from "./words.js";

const SHOWN = 7; // previews per class
const FEW = 5; // fewer images than this are learned without an adapter of their own
const FORBIDDEN = /^\.|[/\\"\p{Cc}]/u; // would not survive as part of an uploaded file's name

const clean = (name) => name.normalize("NFC").trim().replace(/\s+/g, " "); // macOS hands out NFD

let next = 0;
let staged = []; // {key, name, files, row}
let adding = null; // the class that chosen images go to

/** Take files in, each under the name of its folder; those without one go to a class still to be named. */
export function take(found, into = null) {
  tell("teach-error");
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
  if (again) notes.push(again === 1 ? "One image was there already." : `${again} images were there already.`);
  if (!found.length) notes.push("There was no file in it.");
  tell("teach-note", notes.join(" "));
  refresh();
  if (pictures.length) say(`${classes(staged.length)} ready to learn, ${count(images(), "image")}`);
  if (touched && !touched.name) touched.row.field.focus();
}

/** Show an empty place for a class that is known, for more images of it. */
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
  say(`${entry.name || "The class without a name"} removed`);
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

/** A finished name: tidy it, and if another class here has it, they become one. */
function settle(entry) {
  entry.row.field.value = entry.name;
  const twin = staged.find((each) => each !== entry && each.name && each.name === entry.name);
  if (!twin) return;
  put(twin, entry.files);
  staged = staged.filter((each) => each !== entry);
  entry.row.element.remove();
  tell("teach-note", `Both are called “${twin.name}” now, so their images were put together.`);
  refresh();
}

/** What stands in the way of this class, or null. */
function trouble(entry) {
  if (!entry.name) return "Give it a name.";
  if (FORBIDDEN.test(entry.name)) return "A name cannot start with a dot or contain / \\ or \".";
  if (!entry.files.length) return "Add images to it.";
  return null;
}

function remark(entry) {
  const old = model.names.get(entry.name);
  if (old) return `Known already: these images are added to the ${count(old.count, "image")} it was learned from.`;
  const alike = [...model.names.keys()].find((name) => name.toLowerCase() === entry.name.toLowerCase());
  if (alike) return `New, although it knows “${alike}”. Use exactly that name to add to it.`;
  if (entry.files.length && entry.files.length < FEW) return "Very few images. Ten or more make it much surer.";
  return "";
}

function refresh() {
  for (const entry of staged) refreshRow(entry);
  find("stage").hidden = staged.length === 0;
  find("teach-drop").classList.toggle("slim", staged.length > 0);
  const old = staged.filter((entry) => model.names.has(entry.name)).length;
  const fresh = staged.length - old;
  const what = [fresh ? `learn ${count(fresh, "new class", "new classes")}` : "", old ? `add to ${count(old, "known class", "known classes")}` : ""];
  tell("stage-title", `Ready: ${count(images(), "image")}`);
  tell("start", what.filter(Boolean).join(", ").replace(/^./, (letter) => letter.toUpperCase()));
  privacy();
}

function refreshRow({ row, ...entry }) {
  row.number.textContent = count(entry.files.length, "image");
  row.note.textContent = [remark(entry), trouble(entry)].filter(Boolean).join(" ");
  row.note.classList.toggle("bad", FORBIDDEN.test(entry.name)); // what is merely missing is said when it starts
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
  tell(
    "privacy",
    kept
      ? "The images are deleted from the server after learning, except for a small picture of each class."
      : "The images are deleted from the server after learning. Only what the model made of them stays.",
  );
}

/** Hand over the classes to send, and forget them; null after saying what is still missing. */
export function handOver() {
  const stuck = staged.find((entry) => trouble(entry));
  if (stuck) {
    stuck.row.field.setAttribute("aria-invalid", "true");
    stuck.row.note.textContent = trouble(stuck);
    stuck.row.note.classList.add("bad");
    tell("teach-error", stuck.name ? `“${stuck.name}” is not ready. ${trouble(stuck)}` : "One class has no name yet.");
    (stuck.files.length || !stuck.name ? stuck.row.field : stuck.row.more).focus();
    return null;
  }
  const plan = { classes: staged.map(({ name, files }) => ({ name, files })) };
  plan.extend = plan.classes.some(({ name }) => model.names.has(name));
  clear();
  return plan;
}

/** It did not work out: have the classes of a plan back, beside what was staged meanwhile. */
export function takeBack(plan) {
  for (const { name, files } of plan.classes) put(staged.find((entry) => entry.name === name) ?? add(name), files);
  refresh();
}

function clear() {
  staged = [];
  find("stage-list").replaceChildren();
  tell("teach-note");
  tell("teach-error");
  refresh();
}

/** For whatever is being asked next: the class that images were asked for, once. */
export function target() {
  const entry = staged.includes(adding) ? adding : null;
  adding = null;
  return entry;
}

export function setUp() {
  find("stage-clear").onclick = () => {
    clear();
    find("teach-choose").focus();
    say("All removed");
  };
  find("keep-thumbnails").onchange = privacy;
  find("stage-list").addEventListener("input", ({ target: field }) => field.removeAttribute("aria-invalid"));
  model.addEventListener("change", () => (find("keep-thumbnails").checked = model.now.thumbnails.on), { once: true });
  model.addEventListener("change", refresh);
  model.addEventListener("change", () => (find("tune-choice").hidden = !model.now.tunable));
}
