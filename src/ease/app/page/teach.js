// The view "Teach": send the staged classes and follow the job to its end, also after a reload.

import { Refusal, ask, model, send } from "./server.js";
import { chosen, shrunk } from "./pictures.js";
import * as stage from "./stage.js";
import { announce, bytes, classes, count, el, find, list, measured, onDay, percent, setText } from "./words.js";

const KEY = "ease-job"; // the job that this tab follows, kept over a reload
const ACTIVE = new Set(["queued", "running"]);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let busy = false;
let stopping = null; // what the cancel button does at the moment

// --- sending ---------------------------------------------------------------------------------------

async function start(event) {
  event.preventDefault();
  setText("teach-error");
  if (busy) return setText("teach-error", "The model is still learning. Start this when it is done.");
  const plan = stage.handOver();
  if (!plan) return;
  const aborter = new AbortController();
  const names = plan.classes.map(({ name }) => name);
  begin(`Sending ${classes(names.length)}`, names, () => aborter.abort());
  find("job-title").focus();
  addEventListener("beforeunload", hold);
  try {
    const form = await pack(plan, aborter.signal);
    const { job } = await send("learn", form, { signal: aborter.signal, sent: showSent });
    removeEventListener("beforeunload", hold);
    sessionStorage.setItem(KEY, job);
    const state = await watch({ id: job, state: "queued", progress: 0, message: "", classes: names });
    if (state !== "done") stage.takeBack(plan);
  } catch (error) {
    finish();
    stage.takeBack(plan);
    if (error.name === "AbortError") setText("teach-note", "Cancelled before the images were sent: nothing was changed.");
    else setText("teach-error", error.message);
    find("start").focus();
  } finally {
    removeEventListener("beforeunload", hold);
  }
}

const hold = (event) => event.preventDefault(); // the browser asks before it leaves a running upload

/** The form for `/learn`: fields first, then images named `CLASS/FILE`, no name twice. */
async function pack(plan, signal) {
  const form = new FormData();
  form.append("extend", String(plan.extend));
  if (model.now.tunable) form.append("tune", String(find("tune").checked));
  form.append("unreadable", find("skip-unreadable").checked ? "skip" : "refuse");
  form.append("thumbnails", String(find("keep-thumbnails").checked));
  const total = plan.classes.reduce((sum, each) => sum + each.files.length, 0);
  let done = 0;
  for (const { name, files } of plan.classes) {
    const taken = new Set();
    for (const file of files) {
      signal.throwIfAborted();
      const copy = await shrunk(file);
      form.append("image", copy, `${name}/${unique(copy.name, taken)}`);
      done += 1;
      if (copy !== file) progress(0, `Shrinking large photos, ${done} of ${total}`);
    }
  }
  return form;
}

/** A name that is not taken yet: phones call every photo image.jpg. */
function unique(name, taken) {
  const plain = name.replace(/[/\\"]/g, "_");
  let free = plain;
  for (let n = 2; taken.has(free); n += 1) free = `${n}-${plain}`;
  taken.add(free);
  return free;
}

const showSent = (sent, total) =>
  progress(sent / total, sent < total ? `${bytes(sent)} of ${bytes(total)} sent` : "Sent; the server is checking the images");

// --- watching --------------------------------------------------------------------------------------

/** Follow a job until it ends, show how, and return its last state. */
async function watch(job) {
  const title = (at) => `${at.state === "queued" ? "Waiting to learn" : "Learning"} ${classes(at.classes.length)}`;
  begin(title(job), job.classes, () => cancel(job.id));
  try {
    job = await follow(job, title);
  } finally {
    finish();
  }
  await ended(job);
  return job.state;
}

/** The job as it ended. Asked more and more slowly: a job may take hours. */
async function follow(job, title) {
  let spoken = 0;
  for (let wait = 400; ACTIVE.has(job.state); wait = Math.min(2000, wait * 1.2)) {
    setText("job-title", title(job));
    progress(job.progress, job.message || (job.state === "queued" ? "In the queue" : ""));
    if (job.progress - spoken >= 0.25) announce(`${percent((spoken = job.progress))} learned`);
    await pause(wait);
    try {
      job = await ask(`jobs/${encodeURIComponent(job.id)}`);
    } catch (error) {
      if (error instanceof Refusal && error.status === 404) throw error;
      progress(job.progress, error.message); // the server may be restarting: try again
    }
  }
  return job;
}

async function cancel(id) {
  setText("job-message", "Cancelling …");
  try {
    await ask(`jobs/${encodeURIComponent(id)}/cancel`, { method: "POST" });
  } catch (error) {
    setText("teach-error", error.message);
  }
}

function begin(title, names, stop) {
  busy = true;
  stopping = stop;
  find("outcome").hidden = true;
  find("job").hidden = false;
  find("job-cancel").disabled = false;
  find("start").setAttribute("aria-disabled", "true");
  setText("start-note", "The model is learning. You can prepare the next classes meanwhile.");
  setText("job-title", title);
  setText("job-classes", list(names));
  progress(0, "");
  announce(title);
}

function progress(share, message) {
  find("job-bar").value = share;
  setText("job-message", message);
  setText("job-share", percent(share));
  find("strip").hidden = false;
  setText("strip-text", `${find("job-title").textContent}, ${percent(share)}`);
}

function finish() {
  busy = false;
  find("job").hidden = true;
  find("strip").hidden = true;
  find("start").removeAttribute("aria-disabled");
  setText("start-note");
}

// --- how it ended ----------------------------------------------------------------------------------

async function ended(job) {
  if (job.state === "done") {
    await model.reload();
    return outcome("good", learnedTitle(job), learned(job.learned), [
      el("a", { className: "button primary", href: "#predict" }, "Try it"),
      el("a", { className: "button", href: "#classes" }, "Show all classes"),
    ]);
  }
  const lines = {
    failed: [`Learning ${list(job.classes)} failed`, job.error],
    cancelled: ["Cancelled", "The model was not changed."],
    interrupted: ["Interrupted", job.error ?? "The server stopped while it was learning. The model was not changed; teach the classes again."],
  };
  const [title, text] = lines[job.state] ?? [`The job is ${job.state}`, job.error ?? ""];
  outcome(job.state === "cancelled" ? "calm" : "bad", title, [el("p", {}, text ?? "The server gave no reason.")], []);
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

/** After a reload: follow a running job, or show how the job of this tab ended. */
async function resume() {
  const { jobs } = await ask("jobs");
  const mine = sessionStorage.getItem(KEY);
  const job = jobs.find((each) => ACTIVE.has(each.state)) ?? jobs.find((each) => each.id === mine);
  if (!job) return;
  sessionStorage.setItem(KEY, job.id);
  await (ACTIVE.has(job.state) ? watch(job) : ended(job));
}

export function setUp() {
  stage.setUp();
  find("stage").onsubmit = start;
  find("job-cancel").onclick = () => {
    find("job-cancel").disabled = true;
    stopping();
  };
  const inputs = [["teach-folder", "teach-folders"], ["teach-choose", "teach-files"], ["teach-camera", "teach-photo"]];
  for (const [button, input] of inputs) {
    find(button).onclick = () => {
      stage.target(); // a button of the page, not of one class
      find(input).click();
    };
    find(input).onchange = () => {
      const found = chosen(find(input));
      find(input).value = "";
      stage.take(found, stage.target());
    };
  }
  find("teach-folder").hidden = !("webkitdirectory" in HTMLInputElement.prototype);
  resume().catch((error) => setText("teach-error", error.message));
}
