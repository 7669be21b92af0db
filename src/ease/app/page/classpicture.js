// The small picture of a class, where the model keeps one, or the first letter of its name.

import { model } from "./server.js";
import { el } from "./words.js";

export function classPicture(name) {
  const address = model.now?.thumbnails?.images?.[model.names.get(name)?.id];
  if (address) return el("img", { className: "class-picture", src: address.replace(/^\//, ""), alt: "", width: 44, height: 44, loading: "lazy" });
  return el("span", { className: "class-picture initial", "aria-hidden": "true" }, [...name][0] ?? "");
}
