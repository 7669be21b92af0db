// The view "Teach": send the staged classes and follow the job to its end, also after a reload.

import { showFindings } from "./audit.js";
import * as camera from "./camera.js";
import { pack } from "./form.js";
import { follow, isActive } from "./job.js";
import { KEY, ended } from "./outcome.js";
import { ask, model, send } from "./server.js";
import { chosen, isPicture } from "./pictures.js";
import * as stage from "./stage.js";
import { announce, bytes, classes, find, list, percent, setText } from "./words.js";


let busy = false;
let stopping = null; // what the cancel button does at the moment

// --- sending ---------------------------------------------------------------------------------------

async function start(event) {
  event.preventDefault();
  setText("teach-error");
  if (busy) return setText("teach-error", "The model is still learning. Start this when it is done.");
  if (!stage.ready() || !(await labelsChecked())) return;
  const plan = stage.handOver();
  const names = plan.classes.map(({ name }) => name);
  await sending(`Sending ${classes(names.length)}`, names, () => stage.takeBack(plan), async (signal) => {
    const { form } = await pack(plan.classes, fields(plan.extend), signal, shrinking);
    const { job } = await send("learn", form, { signal, sent: showSent });
    removeEventListener("beforeunload", hold);
    sessionStorage.setItem(KEY, job);
    const state = await watch({ id: job, state: "queued", progress: 0, message: "", classes: names });
    if (state !== "done") stage.takeBack(plan);
    return true;
  });
}

/** Do something with the server that can be cancelled; false if it failed, which is then shown. */
async function sending(title, names, failed, work) {
  const aborter = new AbortController();
  begin(title, names, () => aborter.abort());
  find("job-title").focus();
  addEventListener("beforeunload", hold);
  try {
    return await work(aborter.signal);
  } catch (error) {
    finish();
    failed();
    if (error.name === "AbortError") setText("teach-note", "Cancelled before the photos were sent: nothing was changed.");
    else setText("teach-error", error.message);
    find("start").focus();
    return false;
  } finally {
    removeEventListener("beforeunload", hold);
  }
}

/** Let the server look for wrong labels; true if there is nothing (more) to decide. */
async function labelsChecked() {
  if (!find("check-labels").checked || find("check-choice").hidden || stage.isChecked()) return true;
  const all = stage.ready();
  const extend = all.some(({ name }) => model.names.has(name));
  return sending("Looking for mislabelled photos", all.map(({ name }) => name), () => {}, async (signal) => {
    const { form, sent } = await pack(all, fields(extend), signal, shrinking);
    const found = await checked(form, signal);
    finish();
    stage.markChecked();
    if (!found?.findings.length) return true;
    showFindings(found, handsOn(sent), () => find("start").focus());
    return false;
  });
}

async function checked(form, signal) {
  try {
    return await send("check", form, { signal, sent: showSent });
  } catch (error) {
    if (error.name === "AbortError" || !error.status) throw error;
    if (![404, 405].includes(error.status)) {
      stage.markChecked(); // too many photos, or no time for them now: the second attempt learns without the check
      throw new Error(`The labels were not checked: ${error.message}. Start again to learn without the check.`);
    }
    find("check-choice").hidden = true; // this server cannot
    return null;
  }
}

/** What the findings can do to the stage. A photo that was moved is found in its new class. */
function handsOn(sent) {
  const of = (path) => sent.get(path);
  return {
    file: (path) => of(path)?.file,
    remove: (path) => of(path) && stage.removeImage(of(path).name, of(path).file),
    move: (path, to) => {
      if (!of(path)) return;
      stage.moveImage(of(path).name, of(path).file, to);
      of(path).name = to;
    },
    merge: stage.mergeClasses,
  };
}

function fields(extend) {
  return {
    extend,
    ...(model.now.tunable ? { tune: find("tune").checked } : {}),
    unreadable: find("skip-unreadable").checked ? "skip" : "refuse",
    thumbnails: find("keep-thumbnails").checked,
  };
}

const shrinking = (done, total) => progress(0, `Shrinking large photos, ${done} of ${total}`);

const hold = (event) => event.preventDefault(); // the browser asks before it leaves a running upload

const showSent = (sent, total) =>
  progress(sent / total, sent < total ? `${bytes(sent)} of ${bytes(total)} sent` : "Sent; the server is checking the images");

// --- watching --------------------------------------------------------------------------------------

/** Follow a job until it ends, show how, and return its last state. */
async function watch(job) {
  const title = (at) => `${at.state === "queued" ? "Waiting to learn" : "Learning"} ${classes(at.classes.length)}`;
  begin(title(job), job.classes, () => cancel(job.id));
  let spoken = 0;
  try {
    job = await follow(job, (at, left) => {
      setText("job-title", title(at));
      progress(at.progress, [at.message || (at.state === "queued" ? "In the queue" : ""), left].filter(Boolean).join(", "));
      if (at.progress - spoken >= 0.25) announce(`${percent((spoken = at.progress))} learned`);
    });
  } finally {
    finish();
  }
  await ended(job);
  return job.state;
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
  setText("outcome-title");
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

/** After a reload: follow a running job, or show how the job of this tab ended. */
async function resume() {
  const { jobs } = await ask("jobs");
  const mine = sessionStorage.getItem(KEY);
  const job = jobs.find((each) => isActive(each)) ?? jobs.find((each) => each.id === mine);
  if (!job) return;
  sessionStorage.setItem(KEY, job.id);
  await (isActive(job) ? watch(job) : ended(job));
}

export function setUp() {
  stage.setUp();
  camera.setUp();
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
      const alone = input === "teach-folders" || !found.some(({ file }) => isPicture(file));
      stage.take(found, stage.target() ?? (alone ? null : stage.fresh()));
    };
  }
  const choose = find("teach-camera").onclick;
  find("teach-camera").onclick = async () => (await camera.takePhotos(stage.takeShots)) || choose();
  find("teach-folder").hidden = !("webkitdirectory" in HTMLInputElement.prototype);
  resume().catch((error) => setText("teach-error", error.message));
}
