// Lines over categories, for example message sizes, on a logarithmic y axis.
import { common, line, thinLog } from "./chart-base.js";
import { faded, css } from "./palette.js";
import { pointer } from "./chart-pointer.js";
import { logTicks } from "./units.js";

const LETTER = 7, ROOM = 12;
// What was expected is a broad band behind what was measured.
const EXPECTED = () => ({ stroke: faded(css("--idle"), 0.35), width: 9, points: { show: false } });

export function curve(data, chart) {
  const { labels = [], series } = data;
  if (!labels.length || !series.some(({ values }) => values.some((value) => value !== null))) return null;
  const x = labels.map((_, i) => i);
  const options = common(data, [pointer(chart, { title: (i) => labels[i] })]);
  options.scales = { x: { time: false, range: [-0.3, labels.length - 0.7] }, y: { distr: 3 } };
  options.series = [{}, ...series.map((one, i) => ({
    ...line(one, series.slice(0, i).filter((s) => !s.role).length, { ...data, t: x }),
    ...(one.role === "idle" ? EXPECTED() : { points: { show: true, size: 5 } }),
  }))];
  options.axes[0].splits = (u) => places(labels, u.width);
  options.axes[0].values = (u, splits) => splits.map((i) => labels[i] ?? "");
  options.axes[0].grid = { show: false };
  options.axes[1].values = (u, splits) => logTicks(thinLog(splits), data.unit);
  options.cursor = { drag: { x: false, y: false }, points: { size: 6 }, y: false };
  return { options, data: [x, ...series.map((one) => one.values)], span: 900, isEven: false };
}

function places(labels, width) {
  const widest = Math.max(...labels.map((label) => label.length)) * LETTER + ROOM;
  const by = Math.max(1, Math.ceil((labels.length * widest) / Math.max(width - 58, 60)));
  return labels.map((_, i) => i).filter((i) => i % by === 0);
}
