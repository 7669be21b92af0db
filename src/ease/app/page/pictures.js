// Files that a person hands over: which of them are pictures, which folder they lay in, and small previews.

const ENDINGS = /\.(jpe?g|jfif|png|webp|gif|bmp|tiff?|avif|heic|heif)$/i;
const PLAIN = /\.(jpe?g|png|webp|gif|bmp|tiff?)$/i; // what the server reads; a browser may be able to open more
const LARGE = 2_000_000; // bytes; photos above are shrunk before they travel
const SIDE = 1600; // pixels; far more than any backbone looks at

export const isPicture = (file) =>
  file.type ? /^image\/(?!svg)/.test(file.type) : ENDINGS.test(file.name);

/** Not what a person means by a file: .DS_Store, Thumbs.db, resource forks. */
const isLitter = (path) => /(^|\/)(\.|__MACOSX\/|Thumbs\.db$|desktop\.ini$)/.test(path);

const parent = (path) => path.split("/").at(-2) ?? null;

const inOrder = new Intl.Collator("en", { numeric: true });
const sorted = (found) =>
  found.sort((a, b) => inOrder.compare(a.folder ?? "", b.folder ?? "") || inOrder.compare(a.file.name, b.file.name));

/** Files of an `<input>`, each with the name of the folder it lay in, or null. */
export function chosen(input) {
  const found = [...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
  const wanted = found.filter(({ path }) => !isLitter(path));
  return sorted(wanted.map(({ file, path }) => ({ file, folder: parent(path) })));
}

/** Files of a drop, folders opened however deep. Entries must be taken before the first await: they vanish. */
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, folder: null }));
  const found = [];
  for (const entry of entries) await open(entry, found);
  return sorted(found);
}

async function open(entry, found) {
  if (isLitter(entry.fullPath)) return;
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

let line = Promise.resolve(); // one at a time: a hundred photos decoded at once would take all memory

/** Draw a small square of the picture, when its turn comes. */
export function preview(file, canvas) {
  line = line.then(() => draw(file, canvas)).catch(() => canvas.classList.add("blank"));
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
export async function light(file) {
  const foreign = !PLAIN.test(file.name);
  if (file.size <= LARGE && !foreign) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.fillStyle = "#fff"; // what is transparent would turn black in a JPEG
    pen.fillRect(0, 0, width, height);
    pen.drawImage(bitmap, 0, 0, width, height);
    bitmap.close();
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
    if (!blob || (blob.size >= file.size && !foreign)) return file;
    return new File([blob], file.name.replace(/\.[^.]*$|$/, ".jpg"), { type: "image/jpeg" });
  } catch {
    return file; // this browser cannot open it either; the server may, or says why not
  }
}
