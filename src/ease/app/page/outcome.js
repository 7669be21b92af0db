// How a learning job ended.

import { failure } from "./job.js";
import { model } from "./server.js";
import { announce, count, el, find, list, measured, onDay, setText } from "./words.js";

export const KEY = `ease-job ${new URL(".", document.baseURI).pathname}`; // the job that this tab follows, kept over a reload

/** Show how a job ended, and what it learned. */
export async function ended(job) {
  if (job.state === "done") {
    await model.reload();
    return outcome("good", learnedTitle(job), learned(job.learned), [
      el("a", { className: "button primary", href: "#look" }, "Try it"),
      el("a", { className: "button", href: "#classes" }, "Show all classes"),
    ]);
  }
  const [title, text] = failure(job);
  outcome(job.state === "cancelled" ? "calm" : "bad", title, [el("p", {}, text)], []);
}

function learnedTitle({ learned: result, classes: names }) {
  if (!result) return `Learned ${list(names)}`;
  const parts = [];
  if (result.classes.length) parts.push(`${count(result.classes.length, "new class", "new classes")}`);
  if (result.extended.length) parts.push(`more of ${count(result.extended.length, "known class", "known classes")}`);
  return `Learned ${parts.join(" and ")}`;
}

function learned(task) {
  if (!task) return [];
  const names = [...task.classes.map((name) => [name, ""]), ...task.extended.map((name) => [name, "more images"])];
  const result = measured(task, `when learned, on ${onDay(task.date)}`);
  const content = [
    el("ul", { className: "chips" }, names.map(([name, what]) => el("li", {}, name, what && el("span", { className: "muted" }, ` ${what}`)))),
    el("p", {}, `Learned from ${count(task.images, "image")}; ${result}.`),
    el("p", { className: "muted fine" }, "Measured at that time, among the classes known then. Later classes can change it."),
  ];
  if (task.notes.length) {
    content.push(el("h4", {}, "Notes on these images"), el("ul", {}, task.notes.map((note) => el("li", {}, note))));
  }
  return content;
}

function outcome(kind, title, content, actions) {
  const away = el("button", { type: "button", className: "plain" }, "Dismiss");
  away.onclick = () => {
    find("outcome").hidden = true;
    sessionStorage.removeItem(KEY);
    find("teach-title").focus();
  };
  find("outcome").dataset.kind = kind;
  setText("outcome-title", title);
  find("outcome-body").replaceChildren(...content);
  find("outcome-actions").replaceChildren(...actions, away);
  find("outcome").hidden = false;
  announce([title, ...content.map((each) => each.textContent)].join(". "));
  if (!find("view-teach").hidden) find("outcome-title").focus();
}
