// Teaching: send what is staged, watch the job to its end, also after a reload.

import { Refusal, ask, model, send } from "./server.js";
import { chosen, light } from "./pictures.js";
import * as stage from "./stage.js";
import { bytes, classes, count, el, find, list, measured, onDay, percent, say, tell } from "./words.js";

const KEY = "ease-job"; // the job this tab waits for, so that a reload still learns how it ended
const ACTIVE = new Set(["queued", "running"]);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let busy = false;
let stopping = null; // what the cancel button does at the moment

// --- sending ---------------------------------------------------------------------------------------

async function start(event) {
  event.preventDefault();
  tell("teach-error");
  if (busy) return tell("teach-error", "It is still learning. Start this when it is done.");
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
    if (error.name === "AbortError") tell("teach-note", "Cancelled before it was sent: nothing was changed.");
    else tell("teach-error", error.message);
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
      const copy = await light(file);
      form.append("image", copy, `${name}/${unique(copy.name, taken)}`);
      done += 1;
      if (copy !== file) progress(0, `Shrinking large photos, ${done} of ${total}`);
    }
  }
  return form;
}

/** Phones call every photo image.jpg. */
function unique(name, taken) {
  const plain = name.replace(/[/\\"]/g, "_");
  let free = plain;
  for (let n = 2; taken.has(free); n += 1) free = `${n}-${plain}`;
  taken.add(free);
  return free;
}

const showSent = (sent, total) =>
  progress(sent / total, sent < total ? `${bytes(sent)} of ${bytes(total)} sent` : "Sent; the server is checking them");

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
    tell("job-title", title(job));
    progress(job.progress, job.message || (job.state === "queued" ? "In the queue" : ""));
    if (job.progress - spoken >= 0.25) say(`${percent((spoken = job.progress))} learned`);
    await pause(wait);
    try {
      job = await ask(`jobs/${encodeURIComponent(job.id)}`);
    } catch (error) {
      if (error instanceof Refusal && error.status === 404) throw error;
      progress(job.progress, error.message); // the server may be restarting: keep asking
    }
  }
  return job;
}

async function cancel(id) {
  tell("job-message", "Cancelling …");
  try {
    await ask(`jobs/${encodeURIComponent(id)}/cancel`, { method: "POST" });
  } catch (error) {
    tell("teach-error", error.message);
  }
}

function begin(title, names, stop) {
  busy = true;
  stopping = stop;
  find("outcome").hidden = true;
  find("job").hidden = false;
  find("job-cancel").disabled = false;
  find("start").setAttribute("aria-disabled", "true");
  tell("start-note", "It is learning now. You can get the next classes ready meanwhile.");
  tell("job-title", title);
  tell("job-classes", list(names));
  progress(0, "");
  say(title);
}

function progress(share, message) {
  find("job-bar").value = share;
  tell("job-message", message);
  tell("job-share", percent(share));
  find("strip").hidden = false;
  tell("strip-text", `${find("job-title").textContent}, ${percent(share)}`);
}

function finish() {
  busy = false;
  find("job").hidden = true;
  find("strip").hidden = true;
  find("start").removeAttribute("aria-disabled");
  tell("start-note");
}

// --- how it ended ----------------------------------------------------------------------------------

async function ended(job) {
  if (job.state === "done") {
    await model.reload();
    return outcome("good", learnedTitle(job), learned(job.learned), [
      el("a", { className: "button primary", href: "#look" }, "Try it"),
      el("a", { className: "button", href: "#classes" }, "See what it knows"),
    ]);
  }
  const lines = {
    failed: [`It could not learn ${list(job.classes)}`, job.error],
    cancelled: ["Cancelled", "Nothing was changed: the model is what it was before."],
    interrupted: ["Interrupted", job.error ?? "The server stopped while it was learning. The model is what it was before; teach it again."],
  };
  const [title, text] = lines[job.state] ?? [`The job is ${job.state}`, job.error ?? ""];
  outcome(job.state === "cancelled" ? "calm" : "bad", title, [el("p", {}, text ?? "The server did not say why.")], []);
}

function learnedTitle({ learned: act, classes: names }) {
  if (!act) return `It learned ${list(names)}`;
  const parts = [];
  if (act.classes.length) parts.push(`learned ${count(act.classes.length, "new class", "new classes")}`);
  if (act.extended.length) parts.push(`saw more of ${count(act.extended.length, "known class", "known classes")}`);
  return `It ${parts.join(" and ")}`;
}

function learned(act) {
  if (!act) return [];
  const names = [...act.classes.map((name) => [name, ""]), ...act.extended.map((name) => [name, "more images"])];
  const result = measured(act, `when learned, on ${onDay(act.date)}`);
  const content = [
    el("ul", { className: "chips" }, names.map(([name, what]) => el("li", {}, name, what && el("span", { className: "muted" }, ` ${what}`)))),
    el("p", {}, `Learned from ${count(act.images, "image")}; ${result}.`),
    el("p", { className: "muted fine" }, "A figure of that day, among the classes known then. What it learns later can change it."),
  ];
  if (act.notes.length) {
    content.push(el("h4", {}, "Worth knowing about these images"), el("ul", {}, act.notes.map((note) => el("li", {}, note))));
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
  tell("outcome-title", title);
  find("outcome-body").replaceChildren(...content);
  find("outcome-actions").replaceChildren(...actions, away);
  find("outcome").hidden = false;
  say([title, ...content.map((each) => each.textContent)].join(". "));
  if (!find("view-teach").hidden) find("outcome-title").focus();
}

/** After a reload: go on watching, or tell what became of the job this tab had started. */
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
  resume().catch((error) => tell("teach-error", error.message));
}
