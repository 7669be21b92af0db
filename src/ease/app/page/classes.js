// The view "Classes": classes by the date they were learned on; renaming and forgetting.

import { ask, model } from "./server.js";
import { announce, atMinute, bytes, count, el, find, list, measured, setText } from "./words.js";

const MANY = 12; // classes from which a search field helps
let teachMore = () => {};

function facts({ classes, generation, method, backbone, bytes: size, passes_per_image: passes, calibrated }) {
  const rows = [
    ["Classes", String(classes.length)],
    ["Generation", String(generation)],
    ["Confidence", calibrated ? "Calibrated" : "Not calibrated"],
    ["Method", String(method)],
    ["Backbone", String(backbone)],
    ["Size without backbone", bytes(size)],
    ["Passes per image", String(passes)],
  ];
  return rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

function taskSection(task, members) {
  const id = `act-${task.task}`;
  const said = `Learned from ${count(task.images, "image")} · ${measured(task, "at that time")}`;
  const parts = [el("h3", { id }, atMinute(task.date)), el("p", { className: "muted" }, said)];
  if (task.extended.length) parts.push(el("p", {}, `More images of ${list(task.extended)}.`));
  if (task.notes.length) {
    const notes = el("ul", {}, task.notes.map((note) => el("li", {}, note)));
    parts.push(el("details", { className: "notes" }, el("summary", {}, count(task.notes.length, "note")), notes));
  }
  if (members.length) parts.push(el("ul", { className: "known", "aria-labelledby": id }, members.map(oneClass)));
  else if (!task.extended.length) parts.push(el("p", { className: "muted" }, "The classes learned then have been forgotten."));
  return el("section", { className: "act", "aria-labelledby": id }, parts);
}

function oneClass(entry) {
  const address = model.now.thumbnails?.images?.[entry.id];
  const picture = address
    ? el("img", { src: address.replace(/^\//, ""), alt: "", width: 44, height: 44, loading: "lazy" })
    : el("span", { className: "initial", "aria-hidden": "true" }, [...entry.name][0] ?? "");
  const summary = el(
    "summary",
    {},
    picture,
    el("span", { className: "who" }, el("span", { className: "name" }, entry.name), el("span", { className: "muted" }, count(entry.count, "image"))),
  );
  const details = el("details", { className: "one", name: "one" }, summary, tools(entry)); // the name: one at a time
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
    rename(entry, field.value.trim());
  };
  const more = el("button", { type: "button", className: "plain" }, "Add images");
  more.onclick = () => teachMore(entry.name);
  const away = el("button", { type: "button", className: "plain danger" }, "Forget …");
  away.onclick = () => confirmForget(entry, away);
  for (const [button, verb] of [[more, "Add images to"], [away, "Forget"]]) button.setAttribute("aria-label", `${verb} ${entry.name}`);
  return el("div", { className: "tools" }, form, el("div", { className: "actions" }, more, away));
}

function render() {
  const now = model.now;
  const typing = document.activeElement?.closest(".rename input"); // another client may have changed the model
  const open = new Set([...document.querySelectorAll(".one[open]")].map((each) => each.dataset.id));
  find("facts").hidden = now.classes.length === 0;
  find("facts").replaceChildren(...facts(now));
  find("find").hidden = now.classes.length < MANY;
  const tasks = now.tasks.map((task) => taskSection(task, now.classes.filter((entry) => entry.task === task.task)));
  const dated = new Set(now.tasks.map((task) => task.task));
  const rest = now.classes.filter((entry) => !dated.has(entry.task)); // the model of a run has no history
  if (rest.length) {
    tasks.unshift(
      el("section", { className: "act" }, el("h3", {}, "Known from the start"), el("ul", { className: "known" }, rest.map(oneClass))),
    );
  }
  find("acts").replaceChildren(...tasks.reverse());
  for (const each of document.querySelectorAll(".one")) each.open = open.has(each.dataset.id);
  filter();
  if (typing && find(typing.id)) Object.assign(find(typing.id), { value: typing.value }).focus();
}

function filter() {
  const wanted = find("find").hidden ? "" : find("find-text").value.trim().toLowerCase();
  for (const section of find("acts").children) {
    const items = [...section.querySelectorAll(".known > li")];
    for (const item of items) item.hidden = !item.dataset.name.includes(wanted);
    section.hidden = Boolean(wanted) && items.every((item) => item.hidden);
  }
}

function found() {
  const shown = document.querySelectorAll(".act:not([hidden]) .known > li:not([hidden])").length;
  announce(count(shown, "class found", "classes found"));
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

async function rename(entry, name) {
  if (name === entry.name) return;
  const path = `classes/${encodeURIComponent(entry.id)}`;
  const done = await change(() => ask(path, { method: "PATCH", json: { name } }));
  if (!done) return;
  await model.reload();
  setText("classes-note", `“${entry.name}” was renamed to “${done.name}”.`);
  document.querySelector(`.one[data-id="${CSS.escape(entry.id)}"] summary`)?.focus();
}

function confirmForget(entry, button) {
  const dialog = find("forget-dialog");
  setText("forget-title", `Forget “${entry.name}”?`);
  setText("forget-yes", `Forget ${entry.name}`);
  setText("forget-error");
  find("forget-no").onclick = () => dialog.close();
  dialog.onclose = () => (button.isConnected ? button : find("classes-title")).focus();
  find("forget-yes").onclick = async () => {
    find("forget-yes").disabled = true;
    try {
      await forget(entry);
      dialog.close();
    } catch (error) {
      setText("forget-error", error.message);
    } finally {
      find("forget-yes").disabled = false;
    }
  };
  dialog.showModal();
  find("forget-no").focus();
}

async function forget(entry) {
  setText("classes-error");
  const { moved } = await ask(`classes/${encodeURIComponent(entry.id)}`, { method: "DELETE" });
  await model.reload();
  const others = moved
    ? `The directions of other classes changed by at most ${moved.toPrecision(2)} (1 - cosine).`
    : "Nothing changed for the other classes.";
  setText("classes-note", `“${entry.name}” was forgotten. ${others}`);
}

/** `extend` is called with the name of a class that should get more images. */
export function setUp(extend) {
  teachMore = extend;
  find("find-text").oninput = filter;
  find("find-text").onchange = found;
  const shut = (keep) => document.querySelectorAll(".one[open]").forEach((each) => (each.open = each.contains(keep)));
  addEventListener("click", ({ target }) => target.closest("dialog") || shut(target));
  find("acts").addEventListener("keydown", (event) => {
    const one = event.target.closest(".one[open]");
    if (event.key !== "Escape" || !one) return;
    shut(null);
    one.querySelector("summary").focus();
  });
  model.addEventListener("change", render);
}
