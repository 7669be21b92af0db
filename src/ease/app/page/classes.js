// The view "Classes & history": the classes with picture and count; renaming and forgetting.

import { classPicture } from "./classpicture.js";
import { choose } from "./dialogs.js";
import { settle } from "./names.js";
import { ask, model } from "./server.js";
import { announce, bytes, count, el, find, setText } from "./words.js";

const MANY = 12; // classes from which a search field helps
let teachMore = () => {};

function facts({ generation, method, backbone, bytes: size, passes_per_image: passes, calibrated }) {
  const rows = [
    ["Generation", String(generation)],
    ["Confidence", calibrated ? "Calibrated" : "Not calibrated"],
    ["Method", String(method)],
    ["Backbone", String(backbone)],
    ["Size without backbone", bytes(size)],
    ["Passes per image", String(passes)],
  ];
  return rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

function oneClass(entry) {
  const who = el("span", { className: "who" }, el("span", { className: "name" }, entry.name), el("span", { className: "muted" }, count(entry.count, "photo")));
  const details = el("details", { className: "one", name: "one" }, el("summary", {}, classPicture(entry.name), who), tools(entry)); // the name: one at a time
  details.dataset.id = entry.id;
  const item = el("li", {}, details);
  item.dataset.name = entry.name.toLowerCase();
  return item;
}

function tools(entry) {
  const id = `rename-${entry.id}`;
  const field = el("input", { id, type: "text", value: entry.name, autocomplete: "off", maxLength: 100, required: true });
  const form = el(
    "form",
    { className: "rename" },
    el("label", { for: id }, "Name"),
    el("div", { className: "pair" }, field, el("button", { type: "submit" }, "Rename")),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    rename(entry, field.value);
  };
  const more = el("button", { type: "button", className: "plain" }, "Add photos");
  more.onclick = () => teachMore(entry.name);
  const away = el("button", { type: "button", className: "plain danger" }, "Forget …");
  away.onclick = () => forget(entry);
  for (const [button, verb] of [[more, "Add photos to"], [away, "Forget"]]) button.setAttribute("aria-label", `${verb} ${entry.name}`);
  return el("div", { className: "tools" }, form, el("div", { className: "actions" }, more, away));
}

function render() {
  const now = model.now;
  const typing = document.activeElement?.closest(".rename input"); // another client may have changed the model
  const open = new Set([...document.querySelectorAll(".one[open]")].map((each) => each.dataset.id));
  find("technical").hidden = now.classes.length === 0;
  find("facts").replaceChildren(...facts(now));
  find("find").hidden = now.classes.length < MANY;
  find("known").replaceChildren(...[...now.classes].reverse().map(oneClass)); // the newest first
  for (const each of document.querySelectorAll(".one")) each.open = open.has(each.dataset.id);
  filter();
  if (typing && find(typing.id)) Object.assign(find(typing.id), { value: typing.value }).focus();
}

function filter() {
  const wanted = find("find").hidden ? "" : find("find-text").value.trim().toLowerCase();
  for (const item of find("known").children) item.hidden = !item.dataset.name.includes(wanted);
}

async function change(work) {
  setText("classes-error");
  setText("classes-note");
  try {
    return await work();
  } catch (error) {
    setText("classes-error", error.message);
    return null;
  }
}

async function rename(entry, typed) {
  const others = [...model.names.keys()].filter((name) => name !== entry.name);
  const settled = await settle(typed, others);
  if (!settled || settled.name === entry.name) return;
  const path = `classes/${encodeURIComponent(entry.id)}`;
  const done = await change(() => ask(path, { method: "PATCH", json: { name: settled.name } }));
  if (!done) return;
  await model.reload();
  setText("classes-note", `“${entry.name}” was renamed to “${done.name}”.`);
  document.querySelector(`.one[data-id="${CSS.escape(entry.id)}"] summary`)?.focus();
}

async function forget(entry) {
  const answer = await choose({
    title: `Forget “${entry.name}”?`,
    text: [
      el("p", {}, `What was learned from its ${count(entry.count, "photo")} is removed, with its picture and name, and so is the history, since earlier steps still contain it: `, el("strong", {}, "this cannot be undone"), "."),
      el("p", {}, "What all classes share is kept, since the others need it. To recognise the class again, it has to be taught again."),
    ],
    buttons: [{ label: "Keep it", value: "" }, { label: `Forget ${entry.name}`, value: "yes", kind: "danger" }],
  });
  if (answer !== "yes") return;
  const done = await change(() => ask(`classes/${encodeURIComponent(entry.id)}`, { method: "DELETE" }));
  if (!done) return;
  await model.reload();
  const others = done.moved ? "The other classes changed a very little." : "Nothing changed for the other classes.";
  setText("classes-note", `“${entry.name}” was forgotten. ${others}`);
  find("classes-title").focus();
}

/** `extend` is called with the name of a class that should get more photos. */
export function setUp(extend) {
  teachMore = extend;
  find("find-text").oninput = filter;
  find("find-text").onchange = () => announce(count([...find("known").children].filter((item) => !item.hidden).length, "class found", "classes found"));
  const shut = (keep) => document.querySelectorAll(".one[open]").forEach((each) => (each.open = each.contains(keep)));
  addEventListener("click", ({ target }) => target.closest("dialog") || shut(target));
  find("known").addEventListener("keydown", (event) => {
    const one = event.target.closest(".one[open]");
    if (event.key !== "Escape" || !one) return;
    shut(null);
    one.querySelector("summary").focus();
  });
  model.addEventListener("change", render);
}
