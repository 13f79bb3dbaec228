// The legend of a chart: each series with its colour and its value at the cursor. Without a cursor: the latest, or of a resolved alert
// the one at which its text was written.
// A click shows only that series, with Shift hides it or shows it again.
import { hasBefore, nameOf } from "./chart-before.js";
import { colour, SHAPES } from "./palette.js";
import { moment } from "./time.js";
import { figure } from "./units.js";

const MOST = 10;
const PICKED = new Set(["lines", "stack"]);

/** What a series is picked by: its label; all peers together. */
export const keyOf = ({ label, role }) => (role === "muted" ? "peers" : label);

/** A sample of how a series is drawn: its colour, and its shape where there are several. */
export function swatch(ink, role, shape = "") {
  const sample = document.createElement("i");
  if (shape) {
    sample.className = "shape";
    sample.style.color = ink;
    sample.textContent = shape;
    return sample;
  }
  sample.style.background = ink;
  if (role === "wait") sample.className = "wait";
  return sample;
}

/** The shape of the nth of several series that have no meaning of their own; none for one alone. */
export const shapeOf = (series, role, index) => (role || series.filter((one) => !one.role).length < 2 ? "" : SHAPES[index % SHAPES.length]);

function latest(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}

/** The point at which the legend of a resolved alert rests: where its figure is measured, else when it was worst; -1: none. */
function restOf({ data, kind }, loud) {
  const { t, rest, shade } = data;
  if (!rest || !shade.length) return -1;
  const [atS, named] = rest;
  const [since, until] = shade[0];
  const far = (i) => {
    if (named === null) return Math.abs(t[i] - atS);
    const values = loud.map((one) => one.values[i]).filter((value) => value !== null);
    const shown = kind === "stack" ? [values.reduce((sum, value) => sum + value, 0)] : values;
    return Math.min(...shown.map((value) => Math.abs(value - named)));
  };
  return t.reduce((best, second, i) => (second >= since && second <= until && (best < 0 || far(i) < far(best)) ? i : best), -1);
}

function item(chart, key, sample, label) {
  const isPicked = PICKED.has(chart.kind) && chart.data.series.length > 1 && key;
  const entry = document.createElement(isPicked ? "button" : "span");
  entry.append(sample, label);
  if (isPicked) {
    entry.type = "button";
    entry.dataset.series = key;
    entry.title = "Show only this; with Shift, hide or show it";
    entry.setAttribute("aria-pressed", String(!chart.hidden.has(key)));
    entry.addEventListener("click", ({ shiftKey }) => chart.pick(key, shiftKey));
  }
  return entry;
}

/** The series of a chart that stand out, each with its place among those without a role. */
export function loudOf({ series }) {
  let nth = -1;
  return series.map((one) => ({ ...one, index: one.role ? 0 : (nth += 1) })).filter(({ role }) => role !== "muted");
}

function build(chart) {
  const { data, legend, kind } = chart;
  const focused = legend.contains(document.activeElement) ? document.activeElement.dataset.series : null;
  const loud = loudOf(data);
  const muted = data.series.filter(({ role }) => role === "muted");
  const items = loud.slice(0, MOST).map((one) => {
    const entry = item(chart, keyOf(one), swatch(colour(one.role, one.index), one.role, shapeOf(data.series, one.role, one.index)), one.label);
    if (kind !== "bars") entry.append(document.createElement("em"));
    return entry;
  });
  if (loud.length > MOST) items.push(item(chart, "", "", `and ${loud.length - MOST} more`));
  if (muted.length) items.push(item(chart, "peers", swatch(colour("muted", 0), "muted"), mutedOf(muted, loud.length)));
  if (chart.before) items.push(item(chart, "", Object.assign(swatch("", ""), { className: "dashed" }), `${hasBefore(chart) ? "" : "no data "}${nameOf(chart.before.by)}`));
  if (data.rest) items.push(Object.assign(document.createElement("span"), { className: "muted rest" }));
  legend.replaceChildren(...items, ...note(chart));
  if (focused) legend.querySelector(`[data-series="${CSS.escape(focused)}"]`)?.focus();
}

/** Build the legend of a chart. */
export function drawLegend(chart) {
  if (!chart.data?.series || chart.kind === "heat") return;
  build(chart);
  legendAt(chart, null);
}

/** Write the values of a legend as they read at one moment; null: where it rests. */
export function legendAt(chart, idx) {
  const { data, legend, kind } = chart;
  if (!data?.series || kind === "heat" || kind === "bars") return;
  const loud = loudOf(data).slice(0, MOST);
  const resting = idx === null || idx === undefined ? restOf(chart, loud) : idx;
  const at = legend.querySelector(".rest");
  if (at) at.textContent = resting < 0 ? "" : `at ${moment(data.t[resting] * 1000, "clock")}`;
  legend.querySelectorAll("em").forEach((em, i) => {
    const { values } = loud[i] ?? { values: [] };
    const isNow = resting < 0;
    const isMissing = data.missing && isNow && values.length && values[values.length - 1] === null;
    const text = isMissing ? data.missing : figure(isNow ? latest(values) : values[resting], data.unit);
    if (em.textContent !== text) em.textContent = text;
  });
}

function mutedOf(muted, nLoud) {
  const names = muted.map(({ label }) => label);
  if (names.length <= 2) return names.join(", ");
  const noun = names[0].replace(/ \d+$/, "");
  return `${names.length} ${nLoud ? "peers" : noun === "EFA" ? "EFA devices" : `${noun}s`}`;
}

function note({ data, figure: element }) {
  if (!data.note || element.closest(".panel")?.querySelector("header")?.textContent.includes(data.note)) return [];
  return [Object.assign(document.createElement("span"), { className: "tag warn small", textContent: data.note })];
}
