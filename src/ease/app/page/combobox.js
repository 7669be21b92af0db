// A text field that suggests known names while typing: the ARIA pattern "combobox with a list".

import { matching } from "./names.js";
import { announce, count, el } from "./words.js";

let made = 0;

/** A form with the field. `names()` gives the known names; `pick(text)` gets what was chosen or typed. */
export function nameField({ label, names, pick, button, placeholder = "", hint = "" }) {
  const id = `names-${(made += 1)}`;
  const field = el("input", {
    id, type: "text", autocomplete: "off", maxLength: 100, placeholder, spellcheck: false, role: "combobox",
    "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": `${id}-list`,
  });
  const options = el("ul", { id: `${id}-list`, role: "listbox", "aria-label": `${label}: suggestions`, className: "options", hidden: true });
  const go = button ? el("button", { type: "submit", className: "primary" }, button) : null;
  const form = el("form", { className: "name-field", noValidate: true }, el("label", { for: id }, label, hint && el("span", { className: "muted" }, ` ${hint}`)), el("div", { className: "pair" }, el("div", { className: "box" }, field, options), go));
  let shown = [];
  let at = -1;

  const close = () => {
    [shown, at] = [[], -1];
    options.hidden = true;
    options.replaceChildren();
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const open = () => {
    shown = matching(field.value, names()).filter((name) => name !== field.value);
    if (!shown.length) return close();
    at = -1;
    options.replaceChildren(...shown.map((name, n) => {
      const option = el("li", { id: `${id}-${n}`, role: "option", "aria-selected": "false" }, name);
      option.onpointerdown = (event) => event.preventDefault(); // the field keeps the focus
      option.onclick = () => take(name);
      return option;
    }));
    options.hidden = false;
    field.setAttribute("aria-expanded", "true");
    field.removeAttribute("aria-activedescendant");
    if (field.value) announce(count(shown.length, "suggestion"));
  };
  const move = (step) => {
    if (options.hidden) open();
    if (!shown.length) return;
    at = at < 0 && step < 0 ? shown.length - 1 : (at + step + shown.length) % shown.length;
    [...options.children].forEach((option, n) => option.setAttribute("aria-selected", String(n === at)));
    options.children[at].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", `${id}-${at}`);
  };
  const take = (name) => {
    field.value = name;
    close();
    pick(name);
  };

  field.oninput = open;
  field.onblur = close;
  field.onkeydown = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Escape" && !options.hidden) {
      event.preventDefault();
      event.stopPropagation();
      close();
    }
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    if (at >= 0) take(shown[at]);
    else if (field.value.trim()) take(field.value);
    else field.focus();
  };
  return { element: form, field, close };
}
