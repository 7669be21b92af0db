// The page of `ease serve`: three views, of which one is shown at a time, and what they share.

import * as known from "./classes.js";
import * as predicting from "./predict.js";
import { chosen, dropped } from "./pictures.js";
import { model } from "./server.js";
import * as stage from "./stage.js";
import * as teaching from "./teach.js";
import { classes, find, setText } from "./words.js";

const VIEWS = ["predict", "teach", "classes"];
const current = () => VIEWS.find((name) => !find(`view-${name}`).hidden);

function show(name, { focus = true } = {}) {
  for (const each of VIEWS) find(`view-${each}`).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = find(`${name}-title`);
  document.title = `${title.textContent} · ease`;
  if (!focus) return;
  scrollTo(0, 0);
  title.focus({ preventScroll: true });
}

const named = () => VIEWS.find((name) => location.hash === `#${name}`) ?? current() ?? "predict";

/** Show a view at once: the browser reports the new address later, and must find the view, and the focus, in place. */
function open(name) {
  show(name);
  location.hash = name;
}

/** Files that are dropped or pasted go to the open view; on the list of classes they open the view for teaching. */
function receive(found) {
  if (current() === "predict") return predicting.predict(found.map(({ file }) => file));
  if (current() === "classes") open("teach");
  stage.take(found);
}

function listenForDrops() {
  let depth = 0; // entering a child fires before leaving its parent
  const highlight = (on) => document.body.classList.toggle("dropping", on);
  const carries = (event) => event.dataTransfer?.types.includes("Files") && !document.querySelector("dialog[open]");
  addEventListener("dragenter", (event) => carries(event) && highlight((depth += 1) > 0));
  addEventListener("dragleave", (event) => carries(event) && highlight((depth = Math.max(0, depth - 1)) > 0));
  addEventListener("dragover", (event) => event.preventDefault()); // a drop beside the target must not leave the page
  addEventListener("drop", async (event) => {
    event.preventDefault();
    highlight((depth = 0) > 0);
    if (carries(event)) receive(await dropped(event.dataTransfer));
  });
  addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return; // text goes where it was pasted
    event.preventDefault();
    receive(chosen(event.clipboardData));
  });
}

function showState() {
  const { classes: all, generation } = model.now;
  setText("state", all.length ? `${classes(all.length)} · generation ${generation}` : "Knows no class yet");
  for (const step of document.querySelectorAll(".first-step")) step.hidden = all.length > 0;
}

/** Load the state of the model; a server that has just been started may still be loading it. */
async function loadModel() {
  for (;;) {
    try {
      return await model.reload();
    } catch (error) {
      if (error.status !== 503) throw error;
      setText("state", "Loading the model …");
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

model.addEventListener("change", showState);
predicting.setUp();
known.setUp((name) => {
  open("teach");
  stage.extend(name);
});
teaching.setUp();
listenForDrops();
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => show(link.hash.slice(1)));
addEventListener("hashchange", () => named() === current() || show(named()));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  find("main").focus();
});
document.addEventListener("visibilitychange", () => document.hidden || model.reload().catch(() => {}));
show(named(), { focus: false });
loadModel().catch((error) => {
  setText("state", "No model");
  setText(`${current()}-error`, error.message);
});
