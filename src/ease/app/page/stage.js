// The classes that are about to be taught, with names and images, before anything is sent.

import * as audit from "./audit.js";
import { clean } from "./names.js";
import { model } from "./server.js";
import { isPicture } from "./pictures.js";
import { makeRow, missing, refreshRow } from "./stagerow.js";
import { announce, classes, count, find, setText } from "./words.js";

let next = 0;
let staged = []; // {key, name, files, row}
let adding = null; // the class that chosen images go to
let checked = false; // whether the labels of exactly these images have been looked at

/** Add files, each to the class named like its folder; those without one go to a class without a name. */
export function take(found, into = null) {
  setText("teach-error");
  checked = false;
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

/** A new class without a name, for images that are chosen together. */
export const fresh = () => add("");

/** Add the photos of the camera to the class of this name, or to a new one without a name. */
export function takeShots(name, files) {
  const called = clean(name);
  take(files.map((file) => ({ file, folder: null })), (called && staged.find((entry) => entry.name === called)) || add(called));
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
  entry.row = makeRow(entry, { changed: refresh, settle, drop, more: addTo });
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

function addTo(entry) {
  adding = entry;
  find("teach-files").click();
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

function privacy() {
  const kept = find("keep-thumbnails").checked;
  setText(
    "privacy",
    kept
      ? "The images are deleted from the server after learning, except for a small picture of each class."
      : "The images are deleted from the server after learning. Only the model itself is kept.",
  );
}

const entryOf = (name) => staged.find((entry) => entry.name === name);

/** Take one image away from a class, and the class too if it was its last. */
export function removeImage(name, file) {
  const entry = entryOf(name);
  if (!entry) return;
  entry.files = entry.files.filter((each) => each !== file);
  redraw(entry);
}

/** Put an image into another class, which is staged if it is not yet. */
export function moveImage(name, file, to) {
  removeImage(name, file);
  const entry = entryOf(to) ?? add(to);
  entry.files.push(file); // even if a photo there has the same name, size and date: it is another one
  redraw(entry);
}

/** Make two classes one; a known class that is not staged takes the images of the other. */
export function mergeClasses(one, other) {
  const [from, to] = entryOf(other) ? [entryOf(other), one] : [entryOf(one), other];
  if (!from) return;
  const files = from.files;
  staged = staged.filter((entry) => entry !== from);
  from.row.element.remove();
  const entry = entryOf(to) ?? add(to);
  entry.files.push(...files);
  redraw(entry);
}

function redraw(entry) {
  entry.row.thumbs.replaceChildren();
  entry.row.shown = 0;
  if (!entry.files.length) {
    staged = staged.filter((each) => each !== entry);
    entry.row.element.remove();
  }
  refresh();
}

export const isChecked = () => checked;
export const markChecked = () => (checked = true);

/** The classes as they are staged, if nothing is missing; otherwise null, and what is missing is shown. */
export function ready() {
  const stuck = staged.find((entry) => missing(entry));
  if (!stuck) return staged.map(({ name, files }) => ({ name, files: [...files] }));
  stuck.row.field.setAttribute("aria-invalid", "true");
  stuck.row.note.textContent = missing(stuck);
  stuck.row.note.classList.add("bad");
  setText("teach-error", stuck.name ? `“${stuck.name}” is not ready. ${missing(stuck)}` : "One class has no name yet.");
  (stuck.files.length || !stuck.name ? stuck.row.field : stuck.row.more).focus();
  return null;
}

/** Return the classes to send and clear the stage; null if something is missing, which is then shown. */
export function handOver() {
  const all = ready();
  if (!all) return null;
  const plan = { classes: all };
  plan.extend = plan.classes.some(({ name }) => model.names.has(name));
  clear();
  return plan;
}

/** After a failure or a cancellation: put the classes of a plan back, beside those staged meanwhile. */
export function takeBack(plan) {
  for (const { name, files } of plan.classes) put(staged.find((entry) => entry.name === name) ?? add(name), files);
  refresh();
}

function clear() {
  staged = [];
  audit.hide();
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
