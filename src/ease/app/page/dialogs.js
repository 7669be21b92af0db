// One dialog for every question.

import { el, find, setText } from "./words.js";

/** Ask; resolves to the value of the chosen button, "" if the dialog was closed. The first button has the focus. */
export function choose({ title, text, buttons }) {
  const dialog = find("ask");
  const before = document.activeElement;
  setText("ask-title", title);
  find("ask-text").replaceChildren(...text);
  const made = buttons.map(({ label, value, kind = "" }) => {
    const button = el("button", { type: "button", className: kind }, label);
    button.onclick = () => dialog.close(value);
    return button;
  });
  find("ask-buttons").replaceChildren(...made);
  dialog.returnValue = "";
  dialog.showModal();
  made[0].focus();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      if (before?.isConnected) before.focus();
      resolve(dialog.returnValue);
    };
  });
}
