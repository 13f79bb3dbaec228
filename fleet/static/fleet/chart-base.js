// What all kinds of charts share: axes, fonts, the look of a line and its gaps.
import { density } from "./chart-dense.js";
import { labelsPaint } from "./chart-marks.js";
import { colour, css, faded } from "./palette.js";
import { ticks } from "./units.js";

const FONT = "11px system-ui, sans-serif";
export const Y_AXIS = 58;
const GAP_FACTOR = 3; // times the usual spacing: no line is drawn across it

export const isNumber = (value) => value !== null && value !== undefined;

export function spacing(t) {
  const steps = t.slice(1).map((moment, i) => moment - t[i]).sort((a, b) => a - b);
  return steps.length ? steps[steps.length >> 1] : 1;
}

export function line({ label, role }, index, { t, series, every_s: everyS, has_gaps: hasGaps }) {
  const ink = colour(role, index);
  const isMuted = role === "muted" || role === "idle";
  return {
    label,
    stroke: isMuted ? faded(ink, 0.38) : ink,
    width: isMuted ? 1 : role === "bad" ? 2.2 : 1.6,
    points: { show: false },
    // Readings of a fraction of a second are few, and each of them counts.
    ...(everyS < 1 ? {} : density(role, series, faded(ink, 0.2))),
    // Steps are unevenly spaced. Where they stopped, the server marks the gap with null.
    gaps: (u, seriesIdx, from, to, gaps) => hasGaps ? gaps : [...gaps, ...gapsBetween(u, t, from, to)].sort((a, b) => a[0] - b[0]),
  };
}

function gapsBetween(u, t, from, to) {
  const widest = GAP_FACTOR * spacing(t.slice(from, to + 1));
  const found = [];
  for (let i = from + 1; i <= to; i += 1) {
    if (t[i] - t[i - 1] > widest) found.push([u.valToPos(t[i - 1], "x", true), u.valToPos(t[i], "x", true)]);
  }
  return found;
}

// Of a decade only 1, 3 and 10 are labelled.
export function thinLog(splits) {
  const few = splits.filter(isNumber).length <= 6;
  return splits.map((value) => {
    if (!isNumber(value)) return null;
    const lead = Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
    return few || lead === 1 || lead === 3 ? value : null;
  });
}

export function common(data, plugins) {
  const axis = { stroke: css("--muted"), font: FONT, ticks: { show: false }, grid: { stroke: css("--line"), width: 1 } };
  return {
    padding: [10, 24, 0, 0],
    legend: { show: false },
    focus: { alpha: 0.25 },
    hooks: {},
    plugins: [labelsPaint(), ...plugins],
    axes: [
      { ...axis, size: 24, gap: 5, space: 64, grid: { show: false } },
      { ...axis, size: Y_AXIS, gap: 6, space: 30, values: (u, splits) => ticks(splits, data.unit) },
    ],
  };
}
