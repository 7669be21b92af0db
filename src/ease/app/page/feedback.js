// Under every answer: "Right", "Wrong, it is …" and "Why?"; under "Maybe A or B" one button for each of the two.

import { nameField } from "./combobox.js";
import { settle } from "./names.js";
import { model } from "./server.js";
import { waiting } from "./waiting.js";
import { addWhy } from "./why.js";
import { announce, el } from "./words.js";

/** The part of a card in which a person says whether the answer is right; `names` are those in its headline. */
export function feedback(card, file, prediction, names) {
  const [best] = prediction.classes;
  delete card.dataset.noted;
  const part = el("div", { className: "feedback" });
  const complaint = el("p", { className: "row-note bad", role: "alert" });
  const buttons = el("div", { className: "actions" });
  part.append(buttons, complaint);

  const note = async (work) => {
    complaint.textContent = "";
    part.setAttribute("aria-busy", "true");
    try {
      return await work();
    } catch (error) {
      complaint.textContent = error.message;
      return null;
    } finally {
      part.removeAttribute("aria-busy");
    }
  };

  const send = (name, confirm, words) => note(async () => {
    const id = await waiting.correct(file, name, confirm);
    card.dataset.noted = name;
    noted(id, words);
  });

  const noted = (id, words) => {
    const undo = el("button", { type: "button", className: "plain" }, "Undo");
    undo.onclick = () => note(async () => {
      await waiting.remove(id);
      delete card.dataset.noted;
      begin();
      buttons.querySelector("button").focus();
      announce("Taken back");
    });
    const said = el("span", { className: "noted", tabIndex: -1 }, words);
    buttons.replaceChildren(said, ...(id ? [undo] : [])); // a right answer is counted, and its photo is not kept
    (id ? undo : said).focus();
    announce(words);
  };

  const correct = () => {
    const known = () => [...model.names.keys()];
    const box = nameField({
      label: "What is it?", names: known, button: "Save", placeholder: "Name",
      pick: async (typed) => {
        const settled = await settle(typed, known());
        if (settled) await send(settled.name, settled.confirm, `Noted: this is ${settled.name}.`);
        else box.field.focus();
      },
    });
    const back = el("button", { type: "button", className: "plain" }, "Cancel");
    back.onclick = () => {
      begin();
      buttons.querySelector(".wrong").focus();
    };
    box.element.onkeydown = (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) back.onclick();
    };
    buttons.replaceChildren(box.element, back);
    box.field.focus();
  };

  const begin = () => {
    const several = names.length > 1; // "Right" would not say which
    const accept = names.map((name) => {
      const button = el("button", { type: "button" }, several ? `It is ${name}` : "Right");
      button.onclick = () => send(name, false, name === best.name ? `Noted: ${name} is right.` : `Noted: this is ${name}.`);
      return button;
    });
    const wrong = el("button", { type: "button", className: "wrong" }, several ? "Neither, it is …" : prediction.is_unknown ? "It is …" : "Wrong, it is …");
    wrong.onclick = correct;
    const mine = !waiting.on || prediction.corrected ? [] : [...accept, wrong];
    buttons.replaceChildren(...mine);
    addWhy(buttons, card, file, prediction);
  };
  begin();
  return part;
}
