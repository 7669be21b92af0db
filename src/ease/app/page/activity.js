// How the answers have gone from day to day: small charts, the same as a table, and a banner when they drift.

import { line, stack } from "./charts.js";
import { optional } from "./server.js";
import { count, el, find, percent, setText, shortDay } from "./words.js";

const MOST = 6; // classes with a colour of their own

const sum = (numbers) => numbers.reduce((all, each) => all + each, 0);

/** The classes that were answered most over all days; the others are taken together. */
function busiest(days) {
  const sums = new Map();
  for (const day of days) for (const [name, share] of Object.entries(day.classes)) sums.set(name, (sums.get(name) ?? 0) + share * day.images);
  return [...sums].sort((a, b) => b[1] - a[1]).map(([name]) => name).slice(0, MOST);
}

function figure(title, summary, chart, ...more) {
  return el("figure", { className: "chart" }, el("figcaption", {}, el("strong", {}, title), el("span", { className: "muted" }, summary)), chart, ...more);
}

function charts(days, names) {
  const last = days.at(-1);
  const over = `from ${shortDay(days[0].date)} to ${shortDay(last.date)}`;
  const unknown = last.unknown === null ? "" : `${percent(last.unknown)} on ${shortDay(last.date)}`;
  const sure = `${percent(last.confidence)} on ${shortDay(last.date)}`;
  const others = days.some((day) => day.others > 0 || Object.keys(day.classes).some((name) => !names.includes(name)));
  const keys = [...names, ...(others ? ["others"] : [])].map((name, at) => el("li", {}, el("span", { className: `key series-${at === names.length ? "rest" : at}`, "aria-hidden": "true" }), name));
  const shares = days.map((day) => {
    const own = names.map((name) => day.classes[name] ?? 0);
    return [...own, Math.max(0, sum(Object.values(day.classes)) + (day.others ?? 0) - sum(own))];
  });
  return [
    last.unknown === null ? null : figure("Photos of nothing it knows", unknown, line(days.map((day) => day.unknown ?? 0), `Share of photos of nothing it knows, ${over}; ${unknown}.`), el("p", { className: "span muted fine" }, shortDay(days[0].date), el("span", {}, shortDay(last.date)))),
    figure("How sure it is", sure, line(days.map((day) => day.confidence), `Mean confidence, ${over}; ${sure}.`), el("p", { className: "span muted fine" }, shortDay(days[0].date), el("span", {}, shortDay(last.date)))),
    figure("What it saw", `${count(sum(days.map((day) => day.images)), "photo")} in ${count(days.length, "day")}`, stack(shares, `Shares of the classes, ${over}; most often ${names.slice(0, 3).join(", ")}.`), el("ul", { className: "keys" }, keys)),
  ].filter(Boolean);
}

function table(days) {
  const head = ["Day", "Photos", "Nothing it knows", "Mean confidence", "Most often"];
  const rows = days.map((day) => {
    const [most] = Object.entries(day.classes).sort((a, b) => b[1] - a[1]);
    return [shortDay(day.date), String(day.images), day.unknown === null ? "" : percent(day.unknown), percent(day.confidence), most ? `${most[0]} ${percent(most[1])}` : ""];
  });
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((text) => el("td", {}, text))))),
  );
}

/** Ask for the activity and show it; a server without it hides this part. */
export async function load() {
  const found = await optional("activity");
  const days = (found?.days ?? []).filter((day) => day.images > 0);
  setText("drift", (found?.notes ?? []).join(" "));
  find("activity").hidden = days.length === 0;
  if (!days.length) return;
  find("charts").replaceChildren(...charts(days, busiest(days)));
  find("activity-table").replaceChildren(table(days));
}
