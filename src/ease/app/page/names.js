// Names of classes: cleaning them, finding those that match what is typed, and asking about near doubles.

import { choose } from "./dialogs.js";
import { el } from "./words.js";

/** A name without needless spaces, in the composed form (macOS gives the decomposed one). */
export const clean = (name) => name.normalize("NFC").trim().replace(/\s+/g, " ");

const folded = (name) => name.normalize("NFKC").toLowerCase().replace(/\s+/g, "");

/** The known name that differs from this one by case, spaces or Unicode form only. */
export function nearDouble(name, known) {
  if (known.includes(name)) return undefined;
  return known.find((other) => folded(other) === folded(name));
}

/** Known names that match what is typed: first those that start with it, then those with a word that does. */
export function matching(typed, known, most = 8) {
  const wanted = folded(typed);
  const rank = (name) => {
    if (folded(name).startsWith(wanted)) return 0;
    if (name.split(/\s+/).some((word) => folded(word).startsWith(wanted))) return 1;
    return folded(name).includes(wanted) ? 2 : 3;
  };
  const ranked = known.map((name) => [rank(name), name]).filter(([at]) => at < 3);
  return ranked.sort(([a], [b]) => a - b).map(([, name]) => name).slice(0, most);
}

/** The name to use, and whether the user insists on it; null if they would rather type again. */
export async function settle(typed, known) {
  const name = clean(typed);
  if (!name) return null;
  const other = nearDouble(name, known);
  if (!other) return { name, confirm: false };
  const answer = await choose({
    title: `Do you mean “${other}”?`,
    text: [el("p", {}, `“${name}” is written almost like “${other}”, which is there already.`)],
    buttons: [
      { label: `Use “${other}”`, value: "other", kind: "primary" },
      { label: `“${name}” is something else`, value: "new" },
      { label: "Cancel", value: "" },
    ],
  });
  if (answer === "other") return { name: other, confirm: false };
  return answer === "new" ? { name, confirm: true } : null;
}
