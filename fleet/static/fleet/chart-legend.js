// The legend of a chart: each series with its colour and its value at the cursor, or its latest value.
import { colour } from "./palette.js";
import { figure } from "./units.js";

const MOST = 10;

function latest(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}

function item(ink, role, label, text) {
  const span = document.createElement("span");
  const swatch = document.createElement("i");
  swatch.style.background = ink;
  if (role === "wait") swatch.className = "wait";
  span.append(swatch, label);
  if (text) span.append(Object.assign(document.createElement("em"), { textContent: text }));
  return span;
}

/** Write the legend of a chart as it reads at one moment; null: now. */
export function legendOf(chart, idx) {
  const { data, legend, kind } = chart;
  if (!data?.series || kind === "heat") return;
  let nth = -1;
  const loud = data.series.map((one) => ({ ...one, index: one.role ? 0 : (nth += 1) })).filter(({ role }) => role !== "muted");
  const nMuted = data.series.length - loud.length;
  const items = loud.slice(0, MOST).map(({ label, role, values, index }) => {
    const value = kind === "bars" ? null : idx === null || idx === undefined ? latest(values) : values[idx];
    return item(colour(role, index), role, label, kind === "bars" ? "" : figure(value, data.unit));
  });
  if (loud.length > MOST) items.push(item("transparent", "", `and ${loud.length - MOST} more`, ""));
  if (nMuted) items.push(item(colour("muted", 0), "muted", mutedOf(data, nMuted, loud.length), ""));
  legend.replaceChildren(...items, ...note(chart));
}

function mutedOf({ series }, nMuted, nLoud) {
  const names = series.filter(({ role }) => role === "muted").map(({ label }) => label);
  if (nMuted <= 2) return names.join(", ");
  const noun = names[0].replace(/ \d+$/, "");
  return `${nMuted} ${nLoud ? "peers" : noun === "EFA" ? "EFA devices" : `${noun}s`}`;
}

function note({ data, figure: element }) {
  if (!data.note || element.closest(".panel")?.querySelector("header")?.textContent.includes(data.note)) return [];
  return [Object.assign(document.createElement("span"), { className: "tag warn small", textContent: data.note })];
}
