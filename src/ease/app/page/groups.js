// Photos of the inbox that look alike, offered to be named together.

import { nameField } from "./combobox.js";
import { settle } from "./names.js";
import { photoAddress } from "./photoaddress.js";
import { model } from "./server.js";
import { waiting } from "./waiting.js";
import { announce, count, el, find, setText } from "./words.js";

const SHOWN = 8;

/** Show the groups that have no names yet. What is typed in one of them stays while the groups are the same. */
export function offerGroups() {
  const photos = new Map(waiting.photos.filter(({ name }) => !name).map((photo) => [photo.id, photo]));
  const groups = (waiting.now?.groups ?? [])
    .map(({ id, photos: ids }) => ({ id, photos: ids.map((each) => photos.get(each)).filter(Boolean) }))
    .filter((group) => group.photos.length > 1);
  const sign = JSON.stringify(groups.map((group) => group.photos.map(({ id }) => id)));
  find("groups").hidden = groups.length === 0;
  if (find("groups-list").dataset.sign === sign) return;
  find("groups-list").dataset.sign = sign;
  find("groups-list").replaceChildren(...groups.map(oneGroup));
}

function oneGroup({ photos }) {
  const names = () => [...model.names.keys()];
  const thumbs = photos.slice(0, SHOWN).map((photo) => {
    const image = el("img", { alt: "", width: 72, height: 72 });
    photoAddress(photo).then((address) => (image.src = address), () => image.classList.add("blank"));
    return image;
  });
  const rest = photos.length - thumbs.length;
  const box = nameField({
    label: "Name them together", names, button: `Name all ${photos.length}`, placeholder: "Name",
    pick: async (typed) => {
      const settled = await settle(typed, names());
      if (!settled) return box.field.focus();
      try {
        for (const photo of photos) await waiting.name(photo.id, settled.name, settled.confirm);
        announce(`${count(photos.length, "photo")} named ${settled.name}`);
        find("inbox-learn").focus();
      } catch (error) {
        setText("inbox-error", error.message);
      }
    },
  });
  return el(
    "div",
    { className: "panel group" },
    el("p", {}, el("strong", {}, `These ${photos.length} photos look alike.`), " Are they something new?"),
    el("div", { className: "thumbs" }, thumbs, rest > 0 ? el("span", { className: "rest" }, `+${rest}`) : null),
    box.element,
  );
}
