// Elements and formatting. Names of classes come from users, so that text is never parsed as HTML.

export const find = (id) => document.getElementById(id);

/** An element. Properties are set as properties, `data-` and `aria-` names as attributes; strings become text. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Announce a text to screen readers. */
export function announce(text) {
  const status = find("status");
  status.textContent = "";
  setTimeout(() => (status.textContent = text), 50); // so that the same text is read again
}

/** Set or clear the text of an element. */
export function setText(id, text = "") {
  find(id).textContent = text;
}

const number = new Intl.NumberFormat("en");
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "long" });
const minute = new Intl.DateTimeFormat("en-GB", { dateStyle: "long", timeStyle: "short" });
const GAP = "\u202f"; // a narrow space that does not break

export const count = (n, one, many = `${one}s`) => `${number.format(n)}\u00a0${n === 1 ? one : many}`;
export const classes = (n) => count(n, "class", "classes");

export function percent(share) {
  const value = share * 100;
  if (value > 0 && value < 1) return `<${GAP}1${GAP}%`;
  if (value > 99 && value < 100) return `>${GAP}99${GAP}%`;
  return `${Math.round(value)}${GAP}%`;
}

export function bytes(size) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < units.length - 1) [size, at] = [size / 1000, at + 1];
  return `${at && size < 100 ? size.toFixed(1) : Math.round(size)}\u00a0${units[at]}`;
}

const read = (iso, format) => {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? String(iso) : format.format(date);
};
export const onDay = (iso) => read(iso, day);
export const shortDay = (iso) => read(iso, new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" }));
export const atMinute = (iso) => read(iso, minute);

/** "apple, pear and plum"; a long list is cut. */
export function list(names, most = 8) {
  if (names.length > most) return `${names.slice(0, most - 1).join(", ")} and ${names.length - most + 1} more`;
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** How many photos that were held back were recognised after learning; `when` says at which time. */
export function measured(task, when) {
  if (task.accuracy === null || !task.held_out) return "no photo was held back, so nothing was measured";
  const right = Math.round((task.accuracy * task.held_out) / 100);
  return `${right} of ${count(task.held_out, "photo")} held back ${task.held_out === 1 ? "was" : "were"} recognised ${when}`;
}
