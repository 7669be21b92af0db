// The check before learning: photos whose label looks wrong, each with its picture and what can be done about it.

import { preview } from "./pictures.js";
import { announce, count, el, find, setText } from "./words.js";

let open = 0; // findings without a decision

/** What a finding asks to be done, as buttons: [label, what it does]. */
function remedies(finding, { remove, move, merge }) {
  const { kind, files, class: own, other } = finding;
  if (kind === "same-classes") return other ? [[`Make “${own}” and “${other}” one class`, () => merge(own, other)]] : [];
  if (kind === "duplicate") {
    const owner = (path) => path.slice(0, path.lastIndexOf("/"));
    if (!other) return [["Remove the copies", () => files.slice(1).forEach(remove)]];
    return files.map((path) => [`Remove from “${owner(path)}”`, () => remove(path)]); // one of two labels is wrong
  }
  const list = [["Remove photo", () => remove(files[0])]];
  if (other && kind === "like-other") list.push([`Move to “${other}”`, () => move(files[0], other)]);
  return list;
}

function oneFinding(finding, hands, ready) {
  const thumbs = finding.files.slice(0, 4).map((name) => {
    const canvas = el("canvas", { width: 160, height: 160 });
    const file = hands.file(name);
    if (file) queueMicrotask(() => preview(file, canvas));
    return canvas;
  });
  const item = el("li", {}, el("div", { className: "thumbs", "aria-hidden": "true" }, thumbs), el("p", { className: "sentence" }, finding.sentence));
  const decide = (words, work) => {
    work();
    open -= 1;
    item.classList.add("decided");
    item.querySelector(".actions").replaceWith(el("p", { className: "muted" }, words));
    announce(words);
    const next = find("findings").querySelector(".actions button");
    if (next) next.focus();
    else ready();
  };
  const buttons = remedies(finding, hands).map(([label, work]) => {
    const button = el("button", { type: "button" }, label);
    button.onclick = () => decide(`${label}: done.`, work);
    return button;
  });
  const keep = el("button", { type: "button", className: "plain" }, "Keep");
  keep.onclick = () => decide("Kept as it is.", () => {});
  item.append(el("div", { className: "actions" }, buttons, keep));
  return item;
}

/** Show the findings. `hands` finds, removes and moves photos of the stage; `ready` is called after the last decision. */
export function showFindings({ findings, notes, images }, hands, ready) {
  open = findings.length;
  find("audit").hidden = open === 0;
  if (!open) return;
  setText("audit-title", `${count(open, "label", "labels")} to look at`);
  setText("audit-lead", [`Checked ${count(images, "photo")}. Decide about each, or learn them as they are.`, ...notes].join(" "));
  find("findings").replaceChildren(...findings.map((finding) => oneFinding(finding, hands, ready)));
  announce(find("audit-title").textContent);
  find("audit-title").focus();
}

export function hide() {
  find("audit").hidden = true;
  find("findings").replaceChildren();
}
