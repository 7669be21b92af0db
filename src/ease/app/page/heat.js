// Drawing which parts of a photo speak for an answer (orange) and against it (blue), which the colour-blind can tell apart.

const FOR = [255, 140, 0];
const AGAINST = [30, 110, 255];
const SEEN = 224 / 256; // the share of the short side that the model looks at: a square in the middle

/** The square of a photo that the model sees. */
export function seen(width, height) {
  const side = Math.min(width, height) * SEEN;
  return { x: (width - side) / 2, y: (height - side) / 2, side };
}

/** One pixel per field; smoothed when it is drawn larger. */
function small(heat) {
  const [rows, columns] = [heat.length, heat[0].length];
  const most = Math.max(1e-9, ...heat.flat().map(Math.abs));
  const image = new ImageData(columns, rows);
  heat.flat().forEach((value, at) => {
    const strength = Math.abs(value) / most;
    image.data.set([...(value >= 0 ? FOR : AGAINST), Math.round(215 * strength ** 0.9)], at * 4);
  });
  const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Draw the photo in grey with the heat over the part that the model sees. */
export function drawHeat(canvas, bitmap, heat) {
  const longest = Math.max(bitmap.width, bitmap.height);
  const scale = Math.min(800, Math.max(400, longest)) / longest;
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  pen.filter = "grayscale(1) brightness(.8)";
  pen.drawImage(bitmap, 0, 0, width, height);
  pen.filter = "none";
  const { x, y, side } = seen(width, height);
  pen.imageSmoothingEnabled = true;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(small(heat), x, y, side, side);
  pen.strokeStyle = "rgb(255 255 255 / .55)";
  pen.setLineDash([6, 6]);
  pen.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
}

/** Where in the photo the values are largest, in words: "the upper left". */
function place(heat, sign) {
  const [rows, columns] = [heat.length, heat[0].length];
  const sums = Array.from({ length: 9 }, () => 0);
  heat.forEach((line, r) => line.forEach((value, c) => {
    sums[Math.floor((3 * r) / rows) * 3 + Math.floor((3 * c) / columns)] += Math.max(0, sign * value);
  }));
  const most = Math.max(...sums);
  if (most <= 0) return null;
  const at = sums.indexOf(most);
  const words = [["upper", "middle", "lower"][Math.floor(at / 3)], ["left", "middle", "right"][at % 3]];
  return at === 4 ? "the middle" : `the ${words.join(" ").replace("upper middle", "upper part").replace("lower middle", "lower part").replace("middle left", "left").replace("middle right", "right")}`;
}

/** The same in a sentence. */
export function inWords(heat, name, other = null) {
  const [good, bad] = [place(heat, 1), place(heat, -1)];
  const what = other ? `${name} rather than ${other}` : name;
  const sentences = [good ? `Most for ${what}: ${good} of the photo.` : `Nothing in the photo speaks for ${what}.`];
  if (bad) sentences.push(`Most against: ${bad}.`);
  return sentences.join(" ");
}
