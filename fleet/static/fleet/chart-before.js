// The same chart an hour or a day before, as dashed lines to compare with.
import { isNumber } from "./chart-base.js";
import { line as stroke, within } from "./chart-marks.js";
import { colour, css, faded } from "./palette.js";

const DASH = [5, 4];
const GAP_FACTOR = 3;
const NAMES = { 3600: "1 h before", 86400: "1 d before" };

export const nameOf = (by) => NAMES[by];

// The lines to draw: those that stand out, or of stacked steps their sum.
function linesOf({ kind, before, data, hidden }) {
  const shown = before.series.filter(({ role, label }) => role !== "muted" && !hidden.has(label));
  if (kind === "stack") {
    const sums = before.t.map((_, i) => shown.some(({ values }) => isNumber(values[i])) ? shown.reduce((sum, { values }) => sum + (values[i] ?? 0), 0) : null);
    return [{ ink: css("--text"), values: sums }];
  }
  let nth = -1;
  const inks = new Map(data.series.map(({ label, role }) => [label, colour(role, role ? 0 : nth += 1)]));
  return shown.filter(({ label }) => inks.has(label)).map(({ label, values }) => ({ ink: inks.get(label), label, values }));
}

export const hasBefore = ({ before }) => Boolean(before?.series.some(({ values }) => values.some(isNumber)));

/** The highest value, for the scale; of steps only what nine of ten do not exceed. */
export function highestBefore(chart) {
  if (!hasBefore(chart)) return 0;
  const values = linesOf(chart).flatMap((one) => one.values.filter(isNumber)).sort((a, b) => a - b);
  return (chart.kind === "stack" ? values[Math.floor(values.length * 0.9)] : values.at(-1)) ?? 0;
}

/** The value that a line had at the same place of the earlier stretch; null where there is none. */
export function valueBefore(chart, label, second) {
  const { before } = chart;
  const at = before?.t.findIndex((t) => t + before.by >= second) ?? -1;
  return at < 0 ? null : before.series.find((one) => one.label === label)?.values[at] ?? null;
}

/** A uPlot plugin that draws them. */
export function beforePaint(chart) {
  if (!hasBefore(chart)) return { hooks: {} };
  const { before: { t, by } } = chart, lines = linesOf(chart);
  const draw = (u) => within(u, (ctx) => {
    const apart = t.length > 1 ? (t.at(-1) - t[0]) / (t.length - 1) : Infinity;
    for (const { ink, values } of lines) {
      stroke(ctx, faded(ink, 0.75), DASH, [0, 0], [0, 0]);
      ctx.lineWidth = 1.2 * devicePixelRatio;
      ctx.beginPath();
      let last = null;
      values.forEach((value, i) => {
        if (!isNumber(value)) return void (last = null);
        const place = [u.valToPos(t[i] + by, "x", true), u.valToPos(value, "y", true)];
        if (last === null || t[i] - last > GAP_FACTOR * apart) ctx.moveTo(...place);
        else ctx.lineTo(...place);
        last = t[i];
      });
      ctx.stroke();
    }
  });
  return { hooks: { draw } };
}
