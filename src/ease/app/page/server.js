// Talking to the server: one place for its errors, the token and the model's current state.

import { find, tell } from "./words.js";

/** What the server (or the way to it) refused, as one sentence for people. */
export class Refusal extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

const SILENT = "The server does not answer. Check that “ease serve” is running, then try again.";
const KEY = "ease-token";

async function sentenceOf(response) {
  try {
    const { error } = await response.json();
    if (error) return String(error);
  } catch {
    // Not ours, such as a proxy's page.
  }
  return `The server answered ${response.status} without saying why. Its log may tell more.`;
}

const headers = () => {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
};

async function reach(path, { json, ...options }) {
  const extra = json === undefined ? {} : { "Content-Type": "application/json" };
  const body = json === undefined ? options.body : JSON.stringify(json);
  try {
    return await fetch(path, { ...options, body, headers: { ...headers(), ...extra } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(SILENT);
  }
}

/** The JSON at a path. A 401 asks the person for the token and tries again. */
export async function ask(path, options = {}) {
  for (;;) {
    const response = await reach(path, options);
    if (response.ok) return response.json();
    const sentence = await sentenceOf(response);
    if (response.status === 401 && (await askForToken(sentence))) continue;
    throw new Refusal(sentence, response.status);
  }
}

/** Post a form, telling how much of it has been sent. */
export async function send(path, form, { sent, signal }) {
  for (;;) {
    const answer = await upload(path, form, sent, signal);
    if (answer.ok) return answer.json();
    const sentence = await sentenceOf(answer);
    if (answer.status === 401 && (await askForToken(sentence))) continue;
    throw new Refusal(sentence, answer.status);
  }
}

/** XMLHttpRequest, because fetch cannot say how far an upload has come. */
async function upload(path, form, sent, signal) {
  const request = new XMLHttpRequest();
  const stop = () => request.abort();
  try {
    return await new Promise((resolve, reject) => {
      request.open("POST", path);
      for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => sent(event.loaded, event.total);
      request.onload = () => resolve(new Response(request.responseText, { status: request.status }));
      request.onerror = () => reject(new Refusal(SILENT));
      request.onabort = () => reject(new DOMException("stopped", "AbortError"));
      signal.addEventListener("abort", stop);
      request.send(form);
    });
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return await withoutImages(path);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/** A server that refuses before it has read everything breaks the connection off: ask it again, with nothing to send. */
async function withoutImages(path) {
  const answer = await reach(path, { method: "POST", body: new FormData() });
  if ([401, 403, 409, 503].includes(answer.status)) return answer;
  throw new Refusal("The upload broke off. Try again; if it happens again, teach fewer images at a time.");
}

let asking = null; // requests that meet a 401 together share one question

function askForToken(why) {
  sessionStorage.removeItem(KEY);
  asking ??= new Promise((resolve) => {
    const [dialog, field] = [find("token-dialog"), find("token")];
    tell("token-why", why);
    field.value = "";
    find("token-no").onclick = () => dialog.close("");
    find("token-form").onsubmit = () => sessionStorage.setItem(KEY, field.value.trim());
    dialog.onclose = () => {
      asking = null;
      resolve(sessionStorage.getItem(KEY) !== null);
    };
    dialog.showModal();
    field.focus();
  });
  return asking;
}

/** What `/classes` said last. Fires `change` when it says something new. */
class Model extends EventTarget {
  now = null;

  get names() {
    return new Map((this.now?.classes ?? []).map((entry) => [entry.name, entry]));
  }

  async reload() {
    const before = this.now?.generation;
    this.now = await ask("classes");
    if (this.now.generation !== before) this.dispatchEvent(new Event("change"));
  }

  /** Any answer names the generation it came from; a new one means that this picture is old. */
  async met(generation) {
    if (this.now?.generation !== generation) await this.reload();
  }
}

export const model = new Model();
