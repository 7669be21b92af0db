// The page of `ease serve`: four views, of which one is shown at a time, and what they share.

import * as activity from "./activity.js";
import * as known from "./classes.js";
import * as history from "./history.js";
import * as learning from "./learning.js";
import * as looking from "./look.js";
import { chosen, dropped } from "./pictures.js";
import * as review from "./review.js";
import { model } from "./server.js";
import * as stage from "./stage.js";
import * as teaching from "./teach.js";
import { waiting } from "./waiting.js";
import { classes, find, setText } from "./words.js";

const VIEWS = ["look", "inbox", "teach", "classes"];
const current = () => VIEWS.find((name) => !find(`view-${name}`).hidden);

/** What a view loads when it is opened, and does when it is left. */
const opened = { inbox: review.open, classes: () => Promise.all([history.load(), activity.load()]) };
const left = { inbox: () => review.close() };

function show(name, { focus = true } = {}) {
  const before = current();
  if (before !== name) left[before]?.();
  for (const each of VIEWS) find(`view-${each}`).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = find(`${name}-title`);
  document.title = `${title.textContent} · ease`;
  opened[name]?.().catch((error) => setText(`${name}-error`, error.message));
  if (!focus) return;
  scrollTo(0, 0);
  title.focus({ preventScroll: true });
}

const named = () => VIEWS.find((name) => location.hash === `#${name}`) ?? current() ?? "look";

/** Show a view at once: the browser reports the new address later, and must find the view, and the focus, in place. */
function open(name) {
  show(name);
  location.hash = name;
}

/** Files that are dropped or pasted go to the open view; in the others they open the one for teaching. */
function receive(found) {
  if (current() === "look") return looking.look(found.map(({ file }) => file));
  if (current() !== "teach") open("teach");
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
  const { classes: all } = model.now;
  setText("state", all.length ? `Knows ${classes(all.length)}` : "Knows no class yet");
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
model.addEventListener("change", () => current() === "classes" && opened.classes().catch(() => {}));
looking.setUp();
learning.setUp(looking.askAgain);
review.setUp();
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
// The inbox after the model: a server that has just been started refuses both until the model is loaded.
const loadInbox = () => waiting.reload({ quiet: true }).catch(() => waiting.changed()); // without it the rest still works
loadModel().then(loadInbox, (error) => {
  setText("state", "No model");
  setText(`${current()}-error`, error.message);
  waiting.changed();
});
