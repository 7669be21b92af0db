// "8 photos wait to be learned": the panel that learns the named photos of the inbox, under Look and in the Inbox.

import { failure, follow } from "./job.js";
import { ask, blob, model } from "./server.js";
import { waiting } from "./waiting.js";
import { announce, count, el, find, list, percent, setText } from "./words.js";

const TRIED = 20; // photos that are asked about again afterwards
const panels = ["look-learn", "inbox-learn"];
let busy = false;
let lastWord = null; // what the panels say after learning, until something new waits
let afterwards = () => {};

const fill = (...content) => {
  for (const id of panels) {
    const copy = content.map((make) => make());
    find(id).replaceChildren(...copy);
    find(id).hidden = copy.length === 0;
  }
};

function offer() {
  if (busy) return;
  const n = waiting.named.length;
  if (!n) return fill(...(lastWord ? [lastWord] : []));
  const names = [...new Set(waiting.named.map((photo) => photo.name))];
  fill(...(lastWord?.bad ? [lastWord] : []), () => {
    const learn = el("button", { type: "button", className: "primary learn" }, `Learn ${n === 1 ? "this photo" : `these ${n} photos`}`);
    learn.onclick = () => start().catch(() => {});
    const said = el("p", {}, el("strong", {}, `${count(n, "photo")} ${n === 1 ? "waits" : "wait"} to be learned`), el("span", { className: "muted" }, `: ${list(names)}`));
    return el("div", { className: "offer" }, said, learn);
  });
}

function showProgress(job, left) {
  fill(() => el(
    "div",
    {},
    el("p", {}, el("strong", {}, job.state === "queued" ? "Waiting to learn" : "Learning"), ` ${list(job.classes)}`),
    el("progress", { max: 1, value: job.progress, "aria-label": "Learning" }),
    el("p", { className: "job-line" }, el("span", {}, [job.message, left].filter(Boolean).join(", ")), el("span", { className: "share" }, percent(job.progress))),
  ));
}

/** Photos with their names, to ask about them once they are learned: the inbox does not keep them. */
async function takeAlong() {
  const photos = waiting.named.slice(0, TRIED);
  return Promise.all(photos.map(async ({ name, file, image }) => ({ name, file: new File([await blob(image)], file ?? "photo") })));
}

/** How many of the photos the model itself answers rightly now, without looking up the names they were given. */
async function tryAgain(photos) {
  let right = 0;
  for (const { name, file } of photos) {
    const form = new FormData();
    form.append("image", file, file.name);
    const { predictions } = await ask("predict?top=1&named=false", { method: "POST", body: form });
    if (predictions[0].classes[0].name === name && !predictions[0].is_unknown) right += 1;
  }
  return right;
}

async function start() {
  if (busy) return;
  [busy, lastWord] = [true, null];
  const n = waiting.named.length;
  announce(`Learning ${count(n, "photo")}`);
  showProgress({ state: "queued", progress: 0, message: "Starting", classes: [...new Set(waiting.named.map(({ name }) => name))] }, "");
  try {
    await waiting.settleDiscarded();
    const photos = await takeAlong();
    const { job } = await ask("inbox/learn", { method: "POST" });
    const ended = await follow({ id: job, state: "queued", progress: 0, message: "", classes: [...new Set(photos.map(({ name }) => name))] }, showProgress);
    if (ended.state !== "done") throw new Error(failure(ended).join(": "));
    await model.reload();
    const right = await tryAgain(photos);
    say(`Learned ${count(n, "photo")}.`, result(right, photos.length), "good");
    afterwards();
  } catch (error) {
    say("Not learned.", error.message, "bad");
  } finally {
    busy = false;
    await waiting.reload().catch(() => {});
  }
}

function result(right, tried) {
  if (right < tried) return `By itself, the model answers ${right} of ${tried} rightly now; the others get the names you gave.`;
  if (tried === 1) return "The model answers the photo rightly now.";
  return `The model answers all ${tried === TRIED ? `of the first ${TRIED}` : tried} rightly now.`;
}

function say(title, text, kind) {
  lastWord = () => el("p", { className: `word ${kind}` }, el("strong", {}, title), ` ${text}`);
  lastWord.bad = kind === "bad"; // it stays beside the photos, which still wait
  fill(lastWord);
  announce(`${title} ${text}`);
  const shown = panels.map(find).find((panel) => panel.offsetParent);
  if (shown && document.activeElement === document.body) shown.focus();
}

/** `learned` is called after the photos were learned. */
export function setUp(learned) {
  afterwards = learned;
  for (const id of panels) find(id).tabIndex = -1;
  waiting.addEventListener("change", offer);
  waiting.addEventListener("change", () => {
    const n = waiting.photos.length;
    find("badge").hidden = n === 0;
    setText("badge-number", String(n));
    setText("badge-words", n === 1 ? " photo waits" : " photos wait");
    find("look-off").hidden = waiting.on;
    find("footer-collect").hidden = !(waiting.now?.per_day > 0);
  });
}
