// Files that a user chooses or drops: which of them are images, their folders, and small previews.

const ENDINGS = /\.(jpe?g|jfif|png|webp|gif|bmp|tiff?|avif|heic|heif)$/i;
const PLAIN = /\.(jpe?g|png|webp|gif|bmp|tiff?)$/i; // what the server reads; a browser may be able to open more
const LARGE = 2_000_000; // bytes; larger photos are shrunk before they are sent
const SIDE = 1600; // pixels; far more than any backbone reads

export const isPicture = (file) =>
  file.type ? /^image\/(?!svg)/.test(file.type) : ENDINGS.test(file.name);

/** Files of the system: .DS_Store, Thumbs.db, resource forks. */
const isSystemFile = (path) => /(^|\/)(\.|__MACOSX\/|Thumbs\.db$|desktop\.ini$)/.test(path);

const parent = (path) => path.split("/").at(-2) ?? null;

const inOrder = new Intl.Collator("en", { numeric: true });
const sorted = (found) =>
  found.sort((a, b) => inOrder.compare(a.folder ?? "", b.folder ?? "") || inOrder.compare(a.file.name, b.file.name));

/** Files of an `<input>`, each with the name of its folder, or null. */
export function chosen(input) {
  const found = [...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
  const wanted = found.filter(({ path }) => !isSystemFile(path));
  return sorted(wanted.map(({ file, path }) => ({ file, folder: parent(path) })));
}

/** Files of a drop, with those in folders at any depth. Entries must be read before the first await. */
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, folder: null }));
  const found = [];
  for (const entry of entries) await open(entry, found);
  return sorted(found);
}

async function open(entry, found) {
  if (isSystemFile(entry.fullPath)) return;
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    found.push({ file, folder: parent(entry.fullPath.replace(/^\//, "")) });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    // Browsers hand out a folder a hundred entries at a time.
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return;
    for (const each of some) await open(each, found);
  }
}

let queue = Promise.resolve(); // one at a time: a hundred photos decoded at once would take all memory

/** Draw a small square of the picture, when its turn comes. */
export function preview(file, canvas) {
  queue = queue.then(() => draw(file, canvas)).catch(() => canvas.classList.add("blank"));
}

async function draw(file, canvas) {
  if (!canvas.isConnected) return;
  const side = canvas.width;
  const bitmap = await createImageBitmap(file);
  const edge = Math.min(bitmap.width, bitmap.height);
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(bitmap, (bitmap.width - edge) / 2, (bitmap.height - edge) / 2, edge, edge, 0, 0, side, side);
  bitmap.close();
}

/** The file, or a JPEG of a large photo (quick to send) or of a kind the server does not read. */
export async function shrunk(file) {
  const unsupported = !PLAIN.test(file.name);
  if (file.size <= LARGE && !unsupported) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.fillStyle = "#fff"; // transparent parts would become black in a JPEG
    pen.fillRect(0, 0, width, height);
    pen.drawImage(bitmap, 0, 0, width, height);
    bitmap.close();
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
    if (!blob || (blob.size >= file.size && !unsupported)) return file;
    return new File([blob], file.name.replace(/\.[^.]*$|$/, ".jpg"), { type: "image/jpeg" });
  } catch {
    return file; // the browser cannot open it; the server decides
  }
}
