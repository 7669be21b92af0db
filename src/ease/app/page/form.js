// The form for /learn and /check: fields first, then photos named `CLASS/FILE`, no name twice.

import { shrunk } from "./pictures.js";

/** A name that is not taken yet: phones call every photo image.jpg. */
function unique(name, taken) {
  const plain = name.replace(/[/\\"]/g, "_");
  let free = plain;
  for (let n = 2; taken.has(free); n += 1) free = `${n}-${plain}`;
  taken.add(free);
  return free;
}

/** The form, and which photo of which class each name in it stands for; `shrinking(done, total)` reports large photos. */
export async function pack(classes, fields, signal, shrinking) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, String(value));
  const total = classes.reduce((sum, each) => sum + each.files.length, 0);
  const sent = new Map();
  for (const { name, files } of classes) {
    const taken = new Set();
    for (const file of files) {
      signal.throwIfAborted();
      const copy = await shrunk(file);
      const path = `${name}/${unique(copy.name, taken)}`;
      form.append("image", copy, path);
      sent.set(path, { name, file });
      if (copy !== file) shrinking(sent.size, total);
    }
  }
  return { form, sent };
}
