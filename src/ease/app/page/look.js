// The view "Look": photos and their answers.

import { classPicture } from "./classpicture.js";
import { feedback } from "./feedback.js";
import { isPicture, shrunk } from "./pictures.js";
import { ask, model } from "./server.js";
import { verdict } from "./verdict.js";
import { waiting } from "./waiting.js";
import { announce, classes, count, el, find, percent, setText } from "./words.js";

const MOST = 60; // photos at a time
const BARS = 3; // classes shown at once; the others are in the fold
let clearing = new AbortController();

/** Ask for predictions of these files; answers appear above the earlier ones. */
export async function look(files) {
  setText("look-error");
  const pictures = files.filter(isPicture);
  if (pictures.length < files.length) {
    const odd = files.filter((file) => !isPicture(file));
    setText("look-error", odd.length === 1 ? `“${odd[0].name}” is not an image.` : `${odd.length} files are not images.`);
  }
  if (pictures.length > MOST) setText("look-error", `These are the first ${MOST} of ${pictures.length} photos.`);
  const asked = pictures.slice(0, MOST).map((file) => ({ file, card: pending(file) }));
  if (!asked.length) return;
  const several = asked.length > 1;
  find("results").prepend(...asked.map(({ card }) => card));
  tidy();
  announce(several ? `Recognising ${asked.length} photos` : "Recognising");
  const { signal } = clearing;
  const spoken = [];
  const worker = async () => {
    for (let next = asked.shift(); next && !signal.aborted; next = asked.shift()) {
      spoken.push(await answer(next.file, next.card, signal));
    }
  };
  await Promise.all([worker(), worker()]); // two requests at a time: while one is computed, the next one is sent
  if (waiting.now?.per_day > 0) await waiting.reload({ quiet: true }).catch(() => {}); // it may have kept some of them
  if (!signal.aborted) announce(several ? `${spoken.length} photos answered` : spoken[0]);
}

/** Fill a card with what the server says, and return it as a sentence. */
async function answer(file, card, signal) {
  try {
    const form = new FormData();
    const copy = await shrunk(file);
    form.append("image", copy, copy.name);
    const reply = await ask("predict?top=5", { method: "POST", body: form, signal });
    await Promise.all([model.noticeGeneration(reply.generation), waiting.first]);
    const spoken = show(card, copy, reply.predictions[0], reply);
    if (card === find("results").firstElementChild) reveal(card);
    return spoken;
  } catch (error) {
    if (error.name === "AbortError") return "";
    const body = card.querySelector(".body");
    body.replaceChildren(el("h4", {}, "No answer"), el("p", { className: "notice bad" }, error.message));
    body.removeAttribute("aria-busy");
    return `${file.name}: ${error.message}`;
  }
}

/** On a phone the answer lies below the fold. */
function reveal(card) {
  const { bottom } = card.getBoundingClientRect();
  if (bottom > innerHeight) find("results-head").scrollIntoView();
}

/** The card of a photo that waits for its answer. */
function pending(file) {
  const address = URL.createObjectURL(file);
  const image = el("img", { src: address, alt: `Photo ${file.name}`, decoding: "async" });
  const frame = el("figure", { className: "frame" }, el("div", { className: "photo" }, image), el("figcaption", {}, file.name));
  image.onerror = () => image.replaceWith(el("span", { className: "blank" }, "No preview"));
  const rows = Array.from({ length: Math.min(BARS, model.now?.classes.length ?? BARS) }, () => el("li", {}, "\u00a0", bar(0)));
  const body = el(
    "div",
    { className: "body", "aria-busy": "true" },
    el("h4", {}, "Looking …"),
    el("p", { className: "verdict" }, "\u00a0"),
    el("ol", { className: "bars", "aria-hidden": "true" }, rows),
  );
  const card = el("li", { className: "card" }, frame, body);
  Object.assign(card.dataset, { address });
  card.again = () => answer(file, card, clearing.signal);
  return card;
}

function show(card, file, prediction, reply) {
  const body = card.querySelector(".body");
  const { kind, head, line, names, spoken } = verdict(prediction, reply.calibrated);
  const row = ({ name, confidence }) =>
    el("li", {}, el("span", { className: "name" }, name), el("span", { className: "share" }, percent(confidence)), bar(confidence));
  const parts = [
    el("div", { className: "answer" }, names.map(classPicture), el("h4", {}, head)),
    el("p", { className: "verdict" }, line),
    el("ol", { className: "bars", "aria-label": "Likeliest classes" }, prediction.classes.slice(0, BARS).map(row)),
    feedback(card, file, prediction, names),
    details(prediction, reply, row),
  ];
  body.replaceChildren(...parts);
  card.dataset.kind = kind;
  body.removeAttribute("aria-busy");
  return `${prediction.file ?? "photo"}: ${spoken}`;
}

function details(prediction, reply, row) {
  const rest = prediction.classes.slice(BARS);
  const score = prediction.unknown === null ? "not known: the model is not calibrated" : `${percent(prediction.unknown)} (above ${percent(0.5)} counts as none of the classes)`;
  return el(
    "details",
    { className: "fold" },
    el("summary", {}, "Details"),
    rest.length ? el("ol", { className: "bars", start: BARS + 1, "aria-label": "Further classes" }, rest.map(row)) : null,
    el("p", { className: "source" }, `Unknown score: ${score}. Answered by generation ${reply.generation}.`),
  );
}

function bar(share) {
  const fill = el("span", { className: "fill" });
  fill.style.inlineSize = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { className: "bar", "aria-hidden": "true" }, fill);
}

function tidy() {
  const cards = find("results").children.length;
  find("results-head").hidden = cards === 0;
  find("results").classList.toggle("several", cards > 1);
  find("look-drop").classList.toggle("slim", cards > 0);
  setText("results-title", cards > 1 ? `Answers for ${count(cards, "photo")}` : "Answer");
}

function clear() {
  clearing.abort();
  clearing = new AbortController();
  for (const card of find("results").children) URL.revokeObjectURL(card.dataset.address);
  find("results").replaceChildren();
  setText("look-error");
  tidy();
  find("look-choose").focus();
  announce("Cleared");
}

/** After learning: ask again about the photos that were corrected. */
export const askAgain = () => Promise.all([...find("results").children].filter((card) => card.dataset.noted).map((card) => card.again()));

export function setUp() {
  for (const [button, input] of [["look-choose", "look-files"], ["look-camera", "look-photo"]]) {
    find(button).onclick = () => find(input).click();
    find(input).onchange = () => {
      const files = [...find(input).files];
      find(input).value = ""; // so that the same photo can be chosen again
      look(files);
    };
  }
  find("look-clear").onclick = clear;
  model.addEventListener("change", () => {
    const known = model.now.classes.length;
    find("look-drop").hidden = known === 0;
    if (known) setText("look-lead", `Choose a photo to see which of the ${classes(known)} it shows.`);
  });
}
