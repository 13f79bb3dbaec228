// The kinds of charts over time and by worker: lines, stacked steps, bars, heat map.
import uPlot from "../vendor/uplot/dist/uPlot.esm.js";
import { course } from "./chart-course.js";
import { common, isNumber, line, spacing, thinLog, Y_AXIS } from "./chart-base.js";
import { beforePaint, highestBefore } from "./chart-before.js";
import { eventsPaint } from "./chart-events.js";
import { marksPaint, reachPaint, zonePaint } from "./chart-marks.js";
import { barPaint, cutPaint, heatPaint, limitPaint, shadePaint, shapesPaint, stackPaint } from "./chart-paint.js";
import { pointer } from "./chart-pointer.js";
import { touch } from "./chart-touch.js";
import { zoom } from "./range.js";
import { isUtc, moment, now, tenths, zoneName } from "./time.js";
import { figure, logTicks, ticks } from "./units.js";

const HEADROOM = 1.08, MARKED = 1.2;
const MINUTE = 60, HOUR = 3600, DAY = 86400;
const TIME_STEPS_S = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 5, 10].map((n) => n * DAY)];
const LONGEST = 8; // letters of a row's name that fit beside it
const FAR = 8; // times what nine of ten steps take

const KINDS = { lines, stack, bars, heat, course };

/** Turn the server's figure into what uPlot draws; null where there is nothing to draw. */
export function toDrawing(kind, data, chart) {
  return (KINDS[kind] ?? lines)(data, chart);
}

// Whose labels come first: those that can stand in one place only.
const notes = (data) => [shadePaint, eventsPaint, limitPaint, marksPaint].map((paint) => paint(data));

const isBlank = (series) => !series.some(({ values }) => values.some(isNumber));

// ---- lines

function lines(data, chart) {
  const { t, series } = data;
  if (!t.length || isBlank(series)) return null;
  const options = onTime(data, chart, [beforePaint(chart), shapesPaint(data), ...notes(data)]);
  options.series = [{}, ...series.map((one, i) => line(one, series.slice(0, i).filter((s) => !s.role).length, data))];
  if (data.scale === "log") {
    options.scales.y = { distr: 3 };
    options.axes[1].values = (u, splits) => logTicks(thinLog(splits), data.unit);
  } else if (data.scale !== "close") {
    const whole = data.unit === "ratio" && series.every(({ values }) => values.every((value) => !(value > 1)));
    // The room for markers is no part of a share.
    if (whole) options.axes[1].values = (u, splits) => ticks(splits.map((value) => (value > 1 + 1e-9 ? null : value)), data.unit);
    options.scales.y = { range: (u, low, high) => floorAtZero(low, Math.max(high ?? 0, (data.limit ?? 0) * 1.1, highestBefore(chart)), isNoted(data)) };
  }
  return { options, data: [t, ...series.map((one) => one.values)], span: spanOf(data), isEven: isEven(t, data.every_s) };
}

const isEven = (t, everyS) => t.length < 3 || spacing(t) <= everyS * 1.5;

// Markers and the names of shaded stretches have their place above the lines.
const isNoted = ({ events, shade }) => Boolean(events?.length || shade?.length);

function floorAtZero(low, high, hasMarkers) {
  return [Math.min(0, low ?? 0), high > 0 ? high * (hasMarkers ? MARKED : HEADROOM) : 1];
}

// ---- steps, stacked by phase

function stack(data, chart) {
  const { t, series } = data;
  if (!t.length || isBlank(series)) return null;
  const sums = t.map((_, i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0));
  const options = onTime(data, chart, [stackPaint(data, spacing(t)), beforePaint(chart), ...notes(data), cutPaint(data, spacing(t))]);
  options.series = [{}, ...series.map(({ label }) => ({ label, paths: () => null, points: { show: false } }))];
  options.scales.y = { range: (u) => floorAtZero(0, Math.max(highest(sums, t, u.scales.x), highestBefore(chart)), isNoted(data)) };
  return { options, data: [t, ...series.map((one) => one.values)], span: spanOf(data), isEven: false };
}

// One pause of a minute must not press a thousand steps flat: what is far beyond the rest is cut.
function highest(sums, t, { min, max }) {
  const seen = sums.filter((_, i) => t[i] >= (min ?? -Infinity) && t[i] <= (max ?? Infinity)).sort((a, b) => a - b);
  const usual = seen[Math.floor(seen.length * 0.9)] ?? 0;
  const near = seen.filter((sum) => sum <= FAR * usual);
  return near.length < seen.length ? near.at(-1) * 1.5 : (seen.at(-1) ?? 0);
}

// ---- bars, one per label

function bars(data, chart) {
  const { labels = [], series, places = [] } = data;
  if (!labels.length || isBlank(series)) return null;
  const x = labels.map((_, i) => i);
  const sums = x.map((i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0));
  const short = withoutCommonStart(labels);
  const options = common(data, [barPaint(data), limitPaint(data), pointer(chart, { title: (i) => labels[i], place: (i) => places[i] })]);
  options.scales = { x: { time: false, range: [-0.6, labels.length - 0.4] }, y: { range: (u) => floorAtZero(0, Math.max(...sums) * (data.culprit ? roomAbove(u) : 1.06)) } };
  options.series = [{}, ...series.map(({ label }) => ({ label, paths: () => null, points: { show: false } }))];
  options.axes[0].splits = (u) => every(labels.length, u.width, Math.max(...short.map((s) => s.length)), data.culprit?.[0]);
  options.axes[0].values = (u, splits) => splits.map((i) => short[i] ?? "");
  options.axes[0].grid = { show: false };
  options.cursor = { drag: { x: false, y: false }, points: { show: false }, x: false, y: false };
  return { options, data: [x, ...series.map((one) => one.values)], span: 900, isEven: false };
}

// The words about a culprit and the figure of its bar need so many pixels above the highest one.
function roomAbove(u, px = 40) {
  const height = u.bbox.height / devicePixelRatio || 3 * px;
  return height / Math.max(height - px, height / 2);
}

// Every so many of n labels, and always the one that is ``wanted``.
function every(n, width, letters, wanted = 0) {
  const by = Math.max(1, Math.ceil((n * (letters * 7 + 10)) / Math.max(width - Y_AXIS, 60)));
  const first = wanted % by;
  return Array.from({ length: Math.ceil((n - first) / by) }, (_, i) => first + i * by);
}

function withoutCommonStart(labels) {
  if (labels.length < 2) return labels;
  const first = labels[0];
  let n = 0;
  while (n < first.length && labels.every((label) => label[n] === first[n])) n += 1;
  const cut = first.slice(0, n).search(/[^-_./ ]*$/);
  return labels.map((label) => label.slice(cut) || label);
}

// ---- heat: a row per core, a column per moment

function heat(data, chart) {
  const { t, rows, values, peers, places = [] } = data;
  if (!t.length || !values.some((row) => row.some(isNumber))) return null;
  const isOfValues = !data.strengths || chart.figure.dataset.show === "value";
  const inks = isOfValues ? byValue(values) : (row, i) => data.strengths[row][i];
  const order = isOfValues ? rows.map((_, row) => row) : worstFirst(data, inks);
  const names = rows.some((name) => name.length > LONGEST) ? withoutCommonStart(rows) : rows;
  const at = (y) => order[Math.floor(y)];
  const describe = {
    n: rows.length,
    title: (i, y) => [rows[at(y)], places[at(y)]?.[0]].filter(Boolean).join(", "),
    rows: (i, y) => [[null, pointTime(t[i]), figure(values[at(y)]?.[i], data.unit)], ...(peers ? [[null, "peers", figure(peers[i], data.unit)]] : [])],
    place: (i, y) => places[at(y)],
  };
  const options = onTime({ ...data, series: [] }, chart, [heatPaint(data, inks, order)], describe);
  options.series = [{}, { label: "", paths: () => null, points: { show: false } }];
  options.scales.y = { range: [0, rows.length], dir: -1 };
  options.axes[1].grid = { show: false };
  options.axes[1].splits = () => quarters(rows.length);
  options.axes[1].values = (u, splits) => splits.map((i) => names[order[i]] ?? "");
  options.cursor.y = true;
  return { options, data: [t, t.map(() => 0)], span: spanOf(data), isEven: false, order: order.join() };
}

// The highest value has the strongest colour; a share is of one.
function byValue(values) {
  const most = values.reduce((top, row) => row.reduce((highest, value) => Math.max(highest, value ?? 0), top), 0);
  return (row, i) => (isNumber(values[row][i]) ? -values[row][i] / (most || 1) : null);
}

/** The rows by how much of them stands out to the side that is worse; where none does they stay in order. */
function worstFirst({ t, rows, worse }, inks) {
  const harm = (ink) => (worse ? Math.max(0, worse * ink) : Math.abs(ink));
  const sums = rows.map((_, row) => t.reduce((sum, __, i) => sum + harm(inks(row, i) ?? 0), 0));
  return sums.map((_, row) => row).sort((a, b) => sums[b] - sums[a] || a - b);
}

function quarters(n) {
  const by = Math.max(1, Math.ceil(n / 8));
  return Array.from({ length: Math.ceil(n / by) }, (_, i) => i * by);
}

// ---- shared by charts over time

function spanOf({ window, t }) {
  return window ? window[1] - window[0] : Math.max(1, t.at(-1) - t[0]);
}

function onTime(data, chart, paints, describe = {}) {
  const options = common(data, [...paints, reachPaint(data), zonePaint(() => zoneName((data.t.at(-1) ?? 0) * 1000)), touch(chart), pointer(chart, { title: (i) => pointTime(data.t[i], data.every_s), ...describe })]);
  const half = data.window ? 0 : (data.every_s ?? 1) / 2;
  options.scales = { x: { time: true, range: (u, low, high) => xRange(data, low, high, half, chart) }, y: {} };
  options.tzDate = (second) => (isUtc() ? uPlot.tzDate(new Date(second * 1000), "Etc/UTC") : new Date(second * 1000));
  Object.assign(options.axes[0], timeAxis());
  options.cursor = {
    sync: { key: "page", scales: ["x", null] },
    drag: { x: true, y: false, setScale: false, dist: 6 },
    points: { size: 6, width: 1.5, show: data.series.length <= 8 },
    y: false,
    bind: { dblclick: () => () => { zoom(null); return null; } },
  };
  options.hooks.setSelect = [(u) => select(u, chart)];
  return options;
}

function xRange(data, low, high, half, chart) {
  if (chart.isZoomed) return [low, high];
  return data.window ?? [low - half, high + half];
}

function select(u, chart) {
  const { left, width } = u.select;
  if (width > 6 && u.over.matches(":hover")) zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

const pointTime = (second, everyS) => `${everyS < 1 ? tenths(second * 1000) : moment(second * 1000, "clock")} ${zoneName(second * 1000)}`;
const dateOf = (second) => moment(second * 1000, "date");

// What is not of today has its dates, in a line of their own, at the first tick of each day.
function timeAxis() {
  const values = (u, splits, axis, space, step) => {
    const { min, max } = u.scales.x;
    const isToday = dateOf(min) === dateOf(now() / 1000) && dateOf(max) === dateOf(min);
    return splits.map((second, i) => {
      if (step >= DAY) return dateOf(second);
      const text = moment(second * 1000, step >= MINUTE ? "hm" : "time");
      return isToday || (i && dateOf(second) === dateOf(splits[i - 1])) ? text : `${text}\n${dateOf(second)}`;
    });
  };
  return { incrs: TIME_STEPS_S, values, size: (u, texts) => (texts?.some((text) => text?.includes("\n")) ? 38 : 24) };
}
