// Addresses of photos in the inbox. They are fetched with the token, which an <img> could not send.

import { blob } from "./server.js";

const known = new Map(); // photo id -> promise of a blob address

export function photoAddress(photo) {
  if (!known.has(photo.id)) {
    const address = blob(photo.image).then((content) => URL.createObjectURL(content));
    address.catch(() => known.delete(photo.id));
    known.set(photo.id, address);
  }
  return known.get(photo.id);
}
