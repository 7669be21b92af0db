// What the server keeps in its inbox. Fires `change` whenever something in it is new.

import { ask, optional } from "./server.js";

class Waiting extends EventTarget {
  first = new Promise((resolve) => (this.known = resolve)); // until the server has been asked once
  now = null; // null: this server has no inbox, or does not let us see it without the token

  discarded = new Set(); // not yet deleted on the server, so that it can be undone

  get on() {
    return Boolean(this.now?.on);
  }

  get photos() {
    return (this.now?.photos ?? []).filter(({ id }) => !this.discarded.has(id));
  }

  get named() {
    return this.photos.filter((photo) => photo.name);
  }

  /** Ask again; quietly, so that nobody is asked for a token before they open the inbox. */
  async reload({ quiet = false } = {}) {
    try {
      this.now = await optional("inbox", { quiet });
    } catch (error) {
      if (!(quiet && error.status === 401)) throw error;
      this.now = { on: true, hidden: true, photos: [], groups: [] };
    }
    this.changed();
  }

  changed() {
    this.known();
    this.dispatchEvent(new Event("change"));
  }

  async name(id, name, confirm = false) {
    const given = await ask(`inbox/${encodeURIComponent(id)}`, { method: "PATCH", json: { name, confirm } });
    Object.assign(this.photos.find((photo) => photo.id === id) ?? {}, given);
    this.changed();
  }

  async remove(id, options = {}) {
    await ask(`inbox/${encodeURIComponent(id)}`, { method: "DELETE", ...options });
    if (this.now) this.now.photos = this.now.photos.filter((photo) => photo.id !== id);
    this.changed();
  }

  discard(id, yes = true) {
    if (yes) this.discarded.add(id);
    else this.discarded.delete(id);
    this.changed();
  }

  /** Delete on the server what was discarded: on leaving the inbox, and before learning. */
  async settleDiscarded(options = {}) {
    const ids = [...this.discarded];
    await Promise.all(ids.map((id) => this.remove(id, options).then(() => this.discarded.delete(id), () => {})));
  }

  /** Send a photo with what it shows; returns the id under which it waits. */
  async correct(file, name, confirm) {
    const form = new FormData();
    form.append("image", file, file.name);
    form.append("name", name);
    if (confirm) form.append("confirm", "true");
    const { id } = await ask("feedback", { method: "POST", body: form });
    await this.reload();
    return id;
  }
}

export const waiting = new Waiting();
