// The row of one class on the stage: its name, its images, and what is missing or to be noted.

import { clean, nearDouble } from "./names.js";
import { preview } from "./pictures.js";
import { model } from "./server.js";
import { count, el } from "./words.js";

const SHOWN = 7; // previews per class
const FEW = 5; // with fewer images a note recommends more
const FORBIDDEN = /^\.|[/\\"\p{Cc}]/u; // not possible in the name of an uploaded file

/** The row of a class; `hands` are called when its buttons are used or its name has changed. */
export function makeRow(entry, hands) {
  const id = `class-${entry.key}`;
  const field = el("input", { id, type: "text", value: entry.name, autocomplete: "off", maxLength: 100, placeholder: "Name of the class", "aria-describedby": `${id}-note` });
  const number = el("span", { className: "number" });
  const thumbs = el("div", { className: "thumbs", "aria-hidden": "true" });
  const note = el("p", { className: "row-note", id: `${id}-note` });
  const more = el("button", { type: "button", className: "plain" }, "Add images");
  const away = el("button", { type: "button", className: "plain" }, "Remove");
  field.oninput = () => {
    entry.name = clean(field.value);
    hands.changed();
  };
  field.onchange = () => hands.settle(entry);
  more.onclick = () => hands.more(entry);
  away.onclick = () => hands.drop(entry);
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

/** What is missing before this class can be sent, or null. */
export function missing(entry) {
  if (!entry.name) return "Enter a name.";
  if (FORBIDDEN.test(entry.name)) return "A name cannot start with a dot or contain / \\ or \".";
  if (!entry.files.length) return "Add images.";
  return null;
}

function remark(entry) {
  const old = model.names.get(entry.name);
  if (old) return `Known already: these images are added to the ${count(old.count, "image")} it was learned from.`;
  const alike = nearDouble(entry.name, [...model.names.keys()]);
  if (alike) return `This is a new class, but there is also “${alike}”. Use exactly that name to add images to it.`;
  if (entry.files.length && entry.files.length < FEW) return "Very few images. Ten or more give better results.";
  return "";
}

/** Show the present state of a class. */
export function refreshRow({ row, ...entry }) {
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
