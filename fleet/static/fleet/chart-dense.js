// Lines with more points than pixels: drawn per time bucket, the mean as a line and the range from
// minimum to maximum as a band.
import uPlot from "../vendor/uplot/dist/uPlot.esm.js";

const DENSE = 0.75; // points per pixel: from here on a line is drawn by stretches
const WIDTH = 4; // pixels of a stretch, at least
const MOST_BANDS = 3; // more would hide each other
const NICE_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
// The lowest of many parts stays the lowest, and so the highest.
const PICKS = { low: ({ low }) => low, high: ({ high }) => high };

const sparse = uPlot.paths.linear();

/** What uPlot needs to draw one series: its path, and a fill where it has a band. */
export function density(role, series, band) {
  const loud = series.filter((one) => one.role !== "muted");
  const isFramed = loud.some((one) => one.role in PICKS);
  const hasBand = (!role || role === "bad") && !isFramed && loud.length <= MOST_BANDS;
  const pick = PICKS[role] ?? (({ sum, n }) => sum / n);
  const paths = (u, i, from, to) => {
    const perPixel = (to - from) / u.over.clientWidth;
    return perPixel > DENSE ? dense(u, i, from, to, pick, hasBand) : { ...sparse(u, i, from, to), fill: null };
  };
  return hasBand ? { paths, fill: band } : { paths };
}

function stretchOf(u) {
  const { min, max } = u.scales.x;
  const least = ((max - min) / u.over.clientWidth) * WIDTH;
  return NICE_S.find((seconds) => seconds >= least) ?? least;
}

// Stretches follow the clock, not the window: so the drawing does not shimmer.
function stretches(t, values, from, to, length) {
  const found = [];
  for (let i = from; i <= to; i += 1) {
    const value = values[i];
    if (value === null || value === undefined) continue;
    const place = Math.floor(t[i] / length);
    let last = found.at(-1);
    if (last?.place !== place) found.push(last = { place, n: 0, sum: 0, t: 0, low: value, high: value });
    last.n += 1;
    last.sum += value;
    last.t += t[i];
    last.low = Math.min(last.low, value);
    last.high = Math.max(last.high, value);
  }
  return found;
}

function unbroken(all) {
  const runs = [];
  all.forEach((one, i) => {
    if (i && one.place === all[i - 1].place + 1) runs.at(-1).push(one);
    else runs.push([one]);
  });
  return runs;
}

function dense(u, i, from, to, pick, hasBand) {
  const stroke = new Path2D();
  const fill = hasBand ? new Path2D() : null;
  const x = ({ t, n }) => u.valToPos(t / n, "x", true);
  const y = (value) => u.valToPos(value, u.series[i].scale, true);
  for (const run of unbroken(stretches(u.data[0], u.data[i], from, to, stretchOf(u)))) {
    stroke.moveTo(x(run[0]) - devicePixelRatio, y(pick(run[0])));
    for (const one of run) stroke.lineTo(x(one), y(pick(one)));
    if (!fill) continue;
    fill.moveTo(x(run[0]), y(run[0].high));
    for (const one of run) fill.lineTo(x(one), y(one.high));
    for (const one of run.toReversed()) fill.lineTo(x(one), y(one.low));
    fill.closePath();
  }
  return { stroke, fill, clip: null, band: null, gaps: null, flags: 0 };
}
