// "Why?": which parts of the photo led to the answer, and what separates it from the nearest classes.

import { classPicture } from "./classpicture.js";
import { drawHeat, inWords } from "./heat.js";
import { optional } from "./server.js";
import { announce, el } from "./words.js";

let missing = false; // this server has no explanations

/** Add the button to those of a card. */
export function addWhy(buttons, card, file, prediction) {
  if (missing) return;
  const why = el("button", { type: "button", className: "plain why", "aria-expanded": "false" }, "Why?");
  why.onclick = async () => {
    const open = card.querySelector(".why-panel");
    if (open) return close(card, why);
    why.disabled = true;
    why.textContent = "Looking closer …";
    try {
      await explain(card, file, prediction, why);
    } catch (error) {
      card.querySelector(".feedback .row-note").textContent = error.message;
    } finally {
      why.disabled = false;
      why.textContent = "Why?";
    }
    if (why.isConnected) why.focus();
  };
  buttons.append(why);
}

function close(card, why) {
  card.querySelector(".why-panel").remove();
  card.querySelector(".photo canvas")?.remove();
  why.setAttribute("aria-expanded", "false");
}

async function explain(card, file, prediction, why) {
  const form = new FormData();
  form.append("image", file, file.name);
  const found = await optional("explain", { method: "POST", body: form });
  if (!found) {
    missing = true;
    document.querySelectorAll(".why").forEach((button) => button.remove());
    return;
  }
  const bitmap = await createImageBitmap(file);
  const canvas = el("canvas", { role: "img" });
  card.querySelector(".photo").append(canvas);
  const answer = prediction.classes[0].name;
  const words = el("p", { className: "why-words" });
  const paint = (heat, other) => {
    const sentence = inWords(heat, answer, other);
    drawHeat(canvas, bitmap, heat);
    canvas.setAttribute("aria-label", `Heat map over the photo. ${sentence}`);
    words.textContent = sentence;
    announce(sentence);
  };
  card.querySelector(".feedback").append(panel(found, answer, canvas, words, paint));
  why.setAttribute("aria-expanded", "true");
  paint(found.heat, null);
}

function panel(found, answer, canvas, words, paint) {
  const shown = el("input", { type: "checkbox", checked: true, role: "switch" });
  shown.onchange = () => (canvas.hidden = !shown.checked);
  const choices = [{ label: `Why ${answer}?`, heat: found.heat, other: null, name: answer }];
  for (const { name, heat } of found.nearest) choices.push({ label: `Why not ${name}?`, heat, other: name, name });
  const buttons = choices.map(({ label, heat, other, name }, at) => {
    const button = el("button", { type: "button", className: "chip", "aria-pressed": String(at === 0) }, classPicture(name), label);
    button.onclick = () => {
      buttons.forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
      [shown.checked, canvas.hidden] = [true, false];
      paint(heat, other);
    };
    return button;
  });
  return el(
    "div",
    { className: "why-panel" },
    words,
    el("div", { className: "actions", role: "group", "aria-label": "What the colours show" }, buttons),
    el("p", { className: "legend" }, el("span", { className: "against" }, "against"), el("span", { className: "ramp", "aria-hidden": "true" }), el("span", {}, "for")),
    el("label", { className: "check" }, shown, el("span", {}, "Show the colours")),
    el("details", { className: "fold" }, el("summary", {}, "How this is computed"), el("p", { className: "muted fine" }, `${found.method} The dashed square is the part of the photo that is looked at.`)),
  );
}
