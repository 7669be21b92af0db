// The view "Inbox": one photo at a time, named with a key, a button or a typed name.

import { nameField } from "./combobox.js";
import { offerGroups } from "./groups.js";
import { settle } from "./names.js";
import { listen } from "./reviewkeys.js";
import { model } from "./server.js";
import { photoAddress } from "./photoaddress.js";
import { classPicture } from "./classpicture.js";
import { waiting } from "./waiting.js";
import { announce, count, el, find, onDay, percent, setText } from "./words.js";

const MOST = 9; // as many as there are number keys
let at = 0; // the photo that is shown, among `here`
let recent = []; // names given in this session, the newest first
let done = []; // what can be undone: {named, before} or {discarded}
let box = null;

const here = () => waiting.photos;
const knownNames = () => [...new Set([...model.names.keys(), ...waiting.named.map(({ name }) => name)])];

/** The names on the buttons: what the model thinks, then what was given lately, then other classes. */
function choices(photo) {
  const guesses = photo.suggestions.map(({ name }) => name);
  const names = [...new Set([...guesses, ...recent, ...model.names.keys()])].slice(0, MOST);
  return names.map((name) => ({ name, confidence: photo.suggestions.find((each) => each.name === name)?.confidence }));
}

function render() {
  const photos = here();
  find("nav-inbox").hidden = waiting.now === null;
  setText("inbox-lead", lead(photos.length));
  find("review").hidden = photos.length === 0;
  drawFilm(photos);
  offerGroups();
  const there = new Set(waiting.now?.photos.map(({ id }) => id));
  done = done.filter((each) => there.has(each.discarded ?? each.named)); // what was learned or deleted is gone
  find("review-undo").disabled = done.length === 0;
  if (!photos.length) return;
  at = Math.max(0, Math.min(at, photos.length - 1));
  const photo = photos[at];
  setText("review-title", `Photo ${at + 1} of ${photos.length}`);
  setText("review-state", stateOf(photo));
  setText("review-file", `${photo.file}, ${onDay(photo.date)}`);
  const image = find("review-photo");
  if (image.dataset.id !== photo.id) show(image, photo);
  find("review-choices").replaceChildren(...choices(photo).map((choice, n) => choiceButton(choice, n, photo)));
}

function lead(n) {
  if (waiting.now === null || !waiting.on) return "The inbox is off. To collect photos for correcting, start the server with “ease serve --inbox”.";
  if (waiting.now.hidden) return "The inbox needs the token.";
  if (!n) return "Nothing waits here. Photos whose answer you correct come here, and those the model is unsure about if the server collects them (--collect-unsure).";
  const open = here().filter((photo) => !photo.name).length;
  if (!open) return n === 1 ? "The photo has a name. Let the model learn it." : "Every photo has a name. Let the model learn them.";
  if (open === 1) return "1 photo has no name yet. Say what it shows; then let the model learn it.";
  return `${count(open, "photo has", "photos have")} no name yet. Say what each one shows; then let the model learn them.`;
}

function stateOf(photo) {
  if (photo.state === "corrected") return `You corrected this to ${photo.name}.`;
  if (photo.name) return `Named ${photo.name}.`;
  return "What does it show?";
}

async function show(image, photo) {
  image.dataset.id = photo.id;
  image.alt = "";
  try {
    const address = await photoAddress(photo);
    if (image.dataset.id !== photo.id) return;
    Object.assign(image, { src: address, alt: `Photo ${photo.file} from the inbox` });
  } catch (error) {
    setText("inbox-error", error.message);
  }
}

function choiceButton({ name, confidence }, n, photo) {
  const share = confidence === undefined ? null : el("span", { className: "share muted" }, percent(confidence));
  const button = el("button", { type: "button", "aria-pressed": String(photo.name === name), "aria-keyshortcuts": String(n + 1) }, el("kbd", { "aria-hidden": "true" }, String(n + 1)), classPicture(name), el("span", { className: "who" }, el("span", { className: "name" }, name), share));
  button.onclick = () => give(name);
  return el("li", {}, button);
}

function drawFilm(photos) {
  const film = find("film");
  film.hidden = photos.length < 2;
  const old = new Map([...film.children].map((button) => [button.dataset.id, button]));
  const focused = document.activeElement?.dataset?.id;
  film.replaceChildren(...photos.map((photo, n) => {
    const button = old.get(photo.id) ?? filmButton(photo);
    button.setAttribute("aria-current", String(n === at));
    button.setAttribute("aria-label", `Photo ${n + 1}: ${photo.name ?? "no name yet"}`);
    button.lastChild.textContent = photo.name ?? "";
    return button;
  }));
  if (focused && old.has(focused)) old.get(focused).focus();
}

function filmButton(photo) {
  const image = el("img", { alt: "", width: 72, height: 72 });
  photoAddress(photo).then((address) => (image.src = address), () => image.classList.add("blank"));
  const button = el("button", { type: "button" }, image, el("span", { className: "given" }));
  button.dataset.id = photo.id;
  button.onclick = () => go(here().findIndex(({ id }) => id === photo.id));
  return button;
}

function go(to) {
  const n = here().length;
  if (!n) return;
  at = (to + n) % n;
  render();
  announce(`${find("review-title").textContent}. ${find("review-state").textContent}`);
}

/** On to the next photo without a name, if there is one. */
function onward() {
  const photos = here();
  const order = [...photos.keys()].map((n) => (at + n) % photos.length);
  go(order.find((n) => !photos[n].name) ?? at);
}

async function change(work) {
  setText("inbox-error");
  try {
    await work();
  } catch (error) {
    setText("inbox-error", error.message);
  }
}

async function give(name, confirm = false) {
  const photo = here()[at];
  if (!photo) return;
  await change(async () => {
    const before = photo.name;
    await waiting.name(photo.id, name, confirm);
    done.push({ named: photo.id, before });
    recent = [name, ...recent.filter((each) => each !== name)];
    onward();
  });
}

function discard() {
  const photo = here()[at];
  if (!photo) return;
  done.push({ discarded: photo.id });
  waiting.discard(photo.id);
  announce("Discarded");
  go(Math.min(at, here().length - 1));
}

async function undo() {
  const last = done.pop();
  if (!last) return announce("Nothing to undo");
  await change(async () => {
    if (last.discarded) waiting.discard(last.discarded, false);
    else await waiting.name(last.named, last.before, true);
    announce("Taken back");
    go(here().findIndex(({ id }) => id === (last.discarded ?? last.named)));
  });
}

/** Called when the view is left: what was discarded is deleted, and cannot be brought back. */
export async function close(options = {}) {
  done = done.filter((each) => !each.discarded);
  await waiting.settleDiscarded(options);
}

/** Called when the view is opened. */
export async function open() {
  await change(() => waiting.reload());
  at = Math.max(0, here().findIndex((photo) => !photo.name));
  render();
}

export function setUp() {
  box = nameField({
    label: "Another name", names: knownNames, button: "Name it", placeholder: "Type a name",
    pick: async (typed) => {
      const settled = await settle(typed, knownNames());
      if (!settled) return box.field.focus();
      box.field.value = "";
      await give(settled.name, settled.confirm);
      find("review-title").focus({ preventScroll: true });
    },
  });
  find("review-name").append(box.element);
  const acts = {
    s: () => go(at + 1), arrowright: () => go(at + 1), arrowleft: () => go(at - 1), d: discard, u: undo,
    n: () => box.field.focus(),
  };
  find("review-skip").onclick = acts.s;
  find("review-next").onclick = acts.s;
  find("review-back").onclick = acts.arrowleft;
  find("review-none").onclick = acts.n;
  find("review-discard").onclick = discard;
  find("review-undo").onclick = undo;
  listen(acts, (n) => {
    const photo = here()[at];
    const choice = photo && choices(photo)[n - 1];
    if (choice) give(choice.name);
  });
  waiting.addEventListener("change", render);
  model.addEventListener("change", render);
  addEventListener("pagehide", () => close({ keepalive: true, quiet: true }));
}
