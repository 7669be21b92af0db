// The view "What is this?": predictions for photos.

import { ask, model } from "./server.js";
import { isPicture, shrunk } from "./pictures.js";
import { announce, classes, count, el, find, percent, setText } from "./words.js";

const MOST = 60; // photos at a time
let clearing = new AbortController();

/** Ask for predictions of these files; answers appear above the earlier ones. */
export async function predict(files) {
  setText("predict-error");
  const pictures = files.filter(isPicture);
  if (pictures.length < files.length) {
    const odd = files.filter((file) => !isPicture(file));
    setText("predict-error", odd.length === 1 ? `“${odd[0].name}” is not an image.` : `${odd.length} files are not images.`);
  }
  if (pictures.length > MOST) setText("predict-error", `These are the first ${MOST} of ${pictures.length} photos.`);
  const waiting = pictures.slice(0, MOST).map((file) => ({ file, card: pending(file) }));
  if (!waiting.length) return;
  const several = waiting.length > 1;
  find("results").prepend(...waiting.map(({ card }) => card));
  tidy();
  announce(several ? `Recognising ${waiting.length} photos` : "Recognising");
  const { signal } = clearing;
  const spoken = [];
  const worker = async () => {
    for (let next = waiting.shift(); next && !signal.aborted; next = waiting.shift()) {
      spoken.push(await answer(next.file, next.card, signal));
    }
  };
  await Promise.all([worker(), worker()]); // two requests at a time: while one is computed, the next one is sent
  if (!signal.aborted) announce(several ? `${spoken.length} photos answered` : spoken[0]);
}

/** Fill a card with what the server says, and return it as a sentence. */
async function answer(file, card, signal) {
  try {
    const form = new FormData();
    const copy = await shrunk(file);
    form.append("image", copy, copy.name);
    const reply = await ask("predict?top=5", { method: "POST", body: form, signal });
    await model.noticeGeneration(reply.generation);
    const spoken = show(card, reply.predictions[0], reply);
    if (card === find("results").firstElementChild) reveal(card);
    return spoken;
  } catch (error) {
    if (error.name === "AbortError") return "";
    const body = card.querySelector(".body");
    body.replaceChildren(
      el("h4", {}, "No answer"),
      el("p", { className: "notice bad" }, error.message),
    );
    body.removeAttribute("aria-busy");
    return `${file.name}: ${error.message}`;
  }
}

/** On a phone the answer lies below the fold. */
function reveal(card) {
  const { bottom } = card.getBoundingClientRect();
  if (bottom > innerHeight) find("results-head").scrollIntoView();
}

/** The card of a photo that waits for its answer, already as tall as with the answer. */
function pending(file) {
  const address = URL.createObjectURL(file);
  const image = el("img", { src: address, alt: `Photo ${file.name}`, decoding: "async" });
  const frame = el("figure", { className: "frame" }, image, el("figcaption", {}, file.name));
  image.onerror = () => image.replaceWith(el("span", { className: "blank" }, "No preview"));
  const rows = Array.from({ length: Math.min(5, model.now?.classes.length ?? 5) }, () => el("li", {}, "\u00a0", bar(0)));
  const body = el(
    "div",
    { className: "body", "aria-busy": "true" },
    el("h4", {}, "Recognising …"),
    el("p", { className: "verdict" }, "\u00a0"),
    el("ol", { className: "bars", "aria-hidden": "true" }, rows),
    el("p", { className: "source" }, "\u00a0"),
  );
  const card = el("li", { className: "card" }, frame, body);
  card.dataset.address = address;
  return card;
}

function show(card, prediction, reply) {
  const body = card.querySelector(".body");
  const { head, line, spoken } = verdict(prediction, reply.calibrated);
  const rows = prediction.classes.map(({ name, confidence }) =>
    el(
      "li",
      {},
      el("span", { className: "name" }, name),
      el("span", { className: "share" }, percent(confidence)),
      bar(confidence),
    ),
  );
  body.replaceChildren(
    el("h4", {}, head),
    el("p", { className: "verdict" }, ...line),
    el("ol", { className: "bars", "aria-label": "Likeliest classes" }, rows),
    el("p", { className: "source" }, `Answered by generation ${reply.generation}`),
  );
  card.classList.toggle("stranger", prediction.is_unknown);
  body.removeAttribute("aria-busy");
  return `${prediction.file ?? "photo"}: ${spoken}`;
}

/** The answer in words, and whether it can be trusted. */
function verdict(prediction, calibrated) {
  const [best] = prediction.classes;
  const known = classes(model.now.classes.length);
  const score = prediction.unknown === null ? null : percent(prediction.unknown);
  if (prediction.is_unknown) {
    return {
      head: `Looks like none of the ${known}`,
      line: [`Unknown score ${score}; above ${percent(0.5)} counts as none. Most similar to:`],
      spoken: `looks like none of the ${known}, unknown score ${score}. Nearest: ${best.name}`,
    };
  }
  if (!calibrated || score === null) {
    return {
      head: best.name,
      line: [
        el("strong", {}, "Not calibrated: "),
        "the percentages only rank the classes, and unknown photos are not detected.",
      ],
      spoken: `most likely ${best.name}; not calibrated`,
    };
  }
  return {
    head: best.name,
    line: [`Looks like one of the ${known} (unknown score ${score}).`],
    spoken: `${best.name}, ${percent(best.confidence)}; looks like one of the ${known}`,
  };
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
  find("predict-drop").classList.toggle("slim", cards > 0);
  setText("results-title", cards > 1 ? `Answers for ${count(cards, "photo")}` : "Answer");
}

function clear() {
  clearing.abort();
  clearing = new AbortController();
  for (const card of find("results").children) URL.revokeObjectURL(card.dataset.address);
  find("results").replaceChildren();
  setText("predict-error");
  tidy();
  find("predict-choose").focus();
  announce("Cleared");
}

export function setUp() {
  for (const [button, input] of [["predict-choose", "predict-files"], ["predict-camera", "predict-photo"]]) {
    find(button).onclick = () => find(input).click();
    find(input).onchange = () => {
      const files = [...find(input).files];
      find(input).value = ""; // so that the same photo can be chosen again
      predict(files);
    };
  }
  find("predict-clear").onclick = clear;
  model.addEventListener("change", () => {
    const known = model.now.classes.length;
    find("predict-drop").hidden = known === 0;
    if (known) setText("predict-lead", `Choose a photo to see which of the ${classes(known)} it shows.`);
  });
}
