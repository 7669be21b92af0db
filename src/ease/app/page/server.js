// Requests to the server: its errors, the token, and the model's current state.

import { find, setText } from "./words.js";

/** A request that was refused or did not reach the server, with one sentence for the user. */
export class Refusal extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

const NO_ANSWER = "The server does not answer. Check that “ease serve” is running, then try again.";
// Several models may be served from one address, each with a token of its own.
const KEY = `ease-token ${new URL(".", document.baseURI).pathname}`;

async function sentenceOf(response) {
  try {
    const { error } = await response.json();
    if (error) return String(error);
  } catch {
    // Not an answer of ease, such as the error page of a proxy.
  }
  return `The server answered ${response.status} without a reason. See its log.`;
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
    throw new Refusal(NO_ANSWER);
  }
}

/** The response at a path. A 401 asks the user for the token and tries again, unless `quiet`. */
async function response(path, { quiet = false, ...options }) {
  for (;;) {
    const answer = await reach(path, options);
    if (answer.ok) return answer;
    const sentence = await sentenceOf(answer);
    if (answer.status === 401 && !quiet && (await askForToken(sentence))) continue;
    throw new Refusal(sentence, answer.status);
  }
}

/** The JSON at a path. */
export const ask = async (path, options = {}) => (await response(path, options)).json();

/** The content of a photo; an <img> could not send the token. */
export const blob = async (path) => (await response(path, {})).blob();

/** The JSON at a path that some servers do not have; null for those. */
export async function optional(path, options = {}) {
  try {
    return await ask(path, options);
  } catch (error) {
    if ([404, 405, 501].includes(error.status)) return null;
    throw error;
  }
}

/** Post a form; `sent` is called with how much of it has been sent. */
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
      request.onerror = () => reject(new Refusal(NO_ANSWER));
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
  throw new Refusal("The upload was interrupted. Try again; if it happens again, send fewer images at a time.");
}

let asking = null; // requests that get a 401 at the same time share one dialog

function askForToken(why) {
  sessionStorage.removeItem(KEY);
  asking ??= new Promise((resolve) => {
    const [dialog, field] = [find("token-dialog"), find("token")];
    setText("token-why", why);
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

  /** Every answer names its generation; if it is a new one, the model's state is loaded again. */
  async noticeGeneration(generation) {
    if (this.now?.generation !== generation) await this.reload();
  }
}

export const model = new Model();
