// Small charts of shares over days, as SVG. Colours come from the style sheet, so that they follow light and dark.

const SPACE = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [260, 72];

function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const frame = (label, ...children) =>
  shape("svg", { viewBox: `0 -4 ${WIDTH} ${HEIGHT + 8}`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, ...children);

const height = (share) => HEIGHT * (1 - Math.max(0, Math.min(1, share)));
const grid = () => [0, 0.5, 1].map((share) => shape("line", { x1: 0, x2: WIDTH, y1: height(share), y2: height(share), class: "grid" }));

/** A line through shares between 0 and 1, one per day. */
export function line(shares, label) {
  const x = (at) => (shares.length > 1 ? (at * (WIDTH - 8)) / (shares.length - 1) + 4 : WIDTH / 2);
  const points = shares.map((share, at) => `${x(at).toFixed(1)},${height(share).toFixed(1)}`);
  const last = shares.length - 1;
  return frame(
    label,
    ...grid(),
    shape("polygon", { points: `${x(0)},${HEIGHT} ${points.join(" ")} ${x(last)},${HEIGHT}`, class: "area" }),
    shape("polyline", { points: points.join(" "), class: "line" }),
    shape("circle", { cx: x(last), cy: height(shares[last]), r: 3.5, class: "dot" }),
  );
}

/** A bar per day, made of shares; the last share of each is "others". */
export function stack(days, label) {
  const step = WIDTH / days.length;
  const bars = days.flatMap((shares, at) => {
    let top = 1;
    return shares.map((share, n) => {
      top -= share;
      const series = n === shares.length - 1 ? "rest" : n;
      return shape("rect", { x: (at * step + step * 0.1).toFixed(1), width: (step * 0.8).toFixed(1), y: (HEIGHT * (1 - top - share)).toFixed(1), height: (HEIGHT * share).toFixed(1), class: `series-${series}` });
    });
  });
  return frame(label, ...bars);
}
