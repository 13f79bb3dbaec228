// Lines over a numeric axis, for example cost over days, with confidence bands.
import { common } from "./chart-base.js";
import { eventsPaint } from "./chart-events.js";
import { pointer } from "./chart-pointer.js";
import { colour, faded } from "./palette.js";
import { figure, ticks } from "./units.js";

const BOUNDS = new Set(["low", "high"]);
const WRITERS = {
  days: (splits) => splits.map((day) => (day === 0 ? "start" : `${day}\u202fd`)),
  tokens: (splits) => ticks(splits, "count"),
  usd: (splits) => ticks(splits, "usd"),
};

/** Draw data whose ``t`` are numbers; a series of role low or high bounds the one before. */
export function course(data, chart) {
  const { t, labels, series, x_unit: unit } = data;
  if (t.length < 2) return null;
  const options = common(data, [eventsPaint(data), pointer(chart, { title: (i) => labels[i] })]);
  const inks = inksOf(series);
  options.scales = { x: { time: false, range: [t[0], t.at(-1)] }, y: data.scale === "close" ? {} : { range: (u, low, high) => [Math.min(0, low * 1.06), Math.max(0, high * 1.06)] } };
  options.series = [{}, ...series.map(({ label, role }, i) => line(label, role, inks[i]))];
  options.bands = bandsOf(series, inks);
  options.axes[0].values = (u, splits) => (WRITERS[unit] ?? WRITERS.tokens)(splits);
  options.axes[1].values = (u, splits) => splits.map((value) => (value ? figure(value, data.unit).replace(/\.00$/, "") : "0"));
  options.axes[1].size = 66;
  options.cursor = { drag: { x: false, y: false }, points: { size: 6, width: 1.5 }, y: false };
  return { options, data: [t, ...series.map(({ values }) => values)], span: data.window ? data.window[1] - data.window[0] : Infinity, isEven: false };
}

// Bounds have the colour of what they bound.
function inksOf(series) {
  let nth = -1;
  return series.map(({ role }) => {
    if (role === "idle") return colour(role);
    if (!BOUNDS.has(role)) nth += 1;
    return colour(null, nth);
  });
}

function line(label, role, ink) {
  const isBound = BOUNDS.has(role);
  const isBehind = isBound || role === "idle";
  return { label, stroke: isBehind ? faded(ink, isBound ? 0.3 : 0.55) : ink, width: isBehind ? 1 : 2, pxAlign: 0, points: { show: false } };
}

function bandsOf(series, inks) {
  return series.flatMap(({ role }, i) => role === "high" ? [{ series: [i + 1, i], fill: faded(inks[i], 0.16) }] : []);
}
