// What each step learned, how well it went, and the way back.

import { choose } from "./dialogs.js";
import { ask, model, optional } from "./server.js";
import { atMinute, count, el, find, list, setText } from "./words.js";

const whole = (percentage) => Math.round(percentage);

/** "7 of 10 photos held back that day were recognised (between 40 and 89 %)". */
function inWords({ right, count: n, low, high }, what) {
  return `${right} of ${n} ${what} (between ${whole(low)} and ${whole(high)}\u202f%).`;
}

function learned(step) {
  const parts = [];
  if (step.classes.length) parts.push(`Learned ${list(step.classes)}.`);
  if (step.extended.length) parts.push(`More photos of ${list(step.extended)}.`);
  for (const { old, new: name } of step.renamed ?? []) parts.push(`Renamed ${old} to ${name}.`);
  if (step.forgotten) parts.push(`Forgot ${count(step.forgotten, "class", "classes")}.`); // names are forgotten too
  return parts.join(" ") || `${step.what.replace(/^./, (letter) => letter.toUpperCase())}.`.replace(/\.\.$/, ".");
}

function oneStep(step, later) {
  const item = el("li", { "aria-current": step.current ? "step" : "false" }, el("p", { className: "when" }, atMinute(step.date), step.current ? el("span", { className: "tag" }, "now") : null), el("p", { className: "what" }, learned(step)));
  if (step.measured) item.append(el("p", { className: "muted" }, inWords(step.measured, step.measured.count === 1 ? "photo held back that day was recognised" : "photos held back that day were recognised")));
  const notes = model.now?.tasks.find((task) => task.date === step.date)?.notes ?? [];
  item.append(el("details", { className: "fold" }, el("summary", {}, "Details"), el("ul", {}, [[`Generation ${step.generation}`, step.total === undefined ? "" : `${count(step.total, "class", "classes")} in all`, step.what].filter(Boolean).join("; "), ...notes].map((note) => el("li", {}, note)))));
  if (step.current === false) { // earlier acts of learning, whose files are gone, have no way back
    const back = el("button", { type: "button", "aria-label": `Go back to ${atMinute(step.date)}` }, later ? "Go back to this" : "Go forward to this");
    back.onclick = () => rollback(step);
    item.append(el("div", { className: "actions" }, back));
  }
  return item;
}

async function rollback(step) {
  const answer = await choose({
    title: `Go back to ${atMinute(step.date)}?`,
    text: [el("p", {}, `It then knows the ${count(step.total, "class", "classes")} of that time. Later steps stay in the history, so you can return to them the same way.`)],
    buttons: [{ label: "Stay here", value: "" }, { label: "Go back", value: "yes", kind: "primary" }],
  });
  if (answer !== "yes") return;
  setText("classes-error");
  try {
    await ask("rollback", { method: "POST", json: { generation: step.generation } });
    await model.reload();
    await load();
    setText("classes-note", `It knows again what it knew on ${atMinute(step.date)}.`);
    find("classes-title").focus();
  } catch (error) {
    setText("classes-error", error.message);
  }
}

/** Ask for the history and show it; a server without one hides this part. */
export async function load() {
  const history = await optional("history");
  const steps = (history?.generations ?? []).filter((step) => step.total > 0 || step.current);
  find("history").hidden = steps.length === 0;
  const looked = history?.corrections;
  find("corrections").hidden = !looked?.count;
  if (looked?.count) setText("corrections", `Of ${count(looked.count, "answer")} people looked at since, ${looked.right} ${looked.right === 1 ? "was" : "were"} right (between ${whole(looked.low)} and ${whole(looked.high)}\u202f%).`);
  const newest = [...steps].sort((a, b) => b.generation - a.generation);
  const earlier = [...(history?.earlier ?? [])].reverse();
  find("steps").replaceChildren(...[...newest, ...earlier].map((step) => oneStep(step, step.generation < history.current)));
}
