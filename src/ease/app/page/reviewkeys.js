// Keys of the inbox: letters, arrows and digits, while no field is being typed in. They can be switched off.

import { find } from "./words.js";

const KEY = "ease-keys";

/** `acts` by key in lower case; `digit(n)` for 1 to 9. */
export function listen(acts, digit) {
  const wanted = find("review-keys");
  wanted.checked = localStorage.getItem(KEY) !== "off";
  wanted.onchange = () => localStorage.setItem(KEY, wanted.checked ? "on" : "off");
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=checkbox]), textarea, dialog");
    if (find("view-inbox").hidden || find("review").hidden) return;
    if (typing && event.key === "Escape" && !event.defaultPrevented) return find("review-title").focus();
    if (typing || !wanted.checked || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    const act = acts[event.key.toLowerCase()];
    if (!act && !/^[1-9]$/.test(event.key)) return;
    event.preventDefault();
    if (act) act();
    else digit(Number(event.key));
  });
}
