// All charts of a page: find them, refresh them, link cursors and zoom.
import { Chart } from "./chart.js";
import { isFollowing } from "./live.js";
import { onTheme } from "./shell.js";
import { onZone } from "./time.js";

// How often a chart without live points asks again, by the length of its window.
const AGAIN_MS = [[20 * 60, 5000], [2 * 3600, 20000], [48 * 3600, 60000], [Infinity, 300000]];

let charts = [];

const onTime = () => charts.filter((chart) => chart.isOnTime);

/** Show the same stretch of time in every chart of the page; null: all there is. */
function zoom(range) {
  for (const chart of onTime()) chart.zoom(range);
}

/** The address of this page, frozen at what its charts show now. */
export function frozenLink() {
  const whole = document.querySelector("[data-frozen-link]");
  if (whole && !onTime().some((chart) => chart.isZoomed)) return new URL(whole.dataset.frozenLink, location.href).href;
  const chart = onTime().find((chart) => chart.range) ?? null;
  const nowS = Math.floor(Date.now() / 1000);
  const [from, to] = chart?.range ?? [nowS - 900, nowS];
  const link = new URL(location.href);
  if (link.searchParams.has("from") && !chart?.isZoomed) return link.href;
  link.searchParams.delete("window");
  link.searchParams.set("from", Math.floor(from));
  link.searchParams.set("to", Math.ceil(to));
  return link.href;
}

function append(points) {
  for (const chart of charts) if (points[chart.id]) chart.append(points[chart.id]);
}

const isFrozen = (chart) => new URL(chart.src, location.href).searchParams.has("from");

function keepFresh(chart) {
  const wait = AGAIN_MS.find(([span]) => chart.span <= span)[1];
  const isDue = Date.now() - chart.loadedAt > Math.max(wait, 20 * chart.tookMs);
  if (isDue && chart.isSeen && !isFrozen(chart) && !chart.isFed) chart.load({ quietly: true });
}

function adopt(root = document) {
  charts = charts.filter((chart) => chart.figure.isConnected || chart.destroy());
  for (const figure of root.querySelectorAll("figure.chart:not([data-state])")) {
    const chart = new Chart(figure, { zoom });
    charts.push(chart);
    chart.load();
  }
}

export function startCharts() {
  adopt();
  onTheme(() => charts.forEach((chart) => chart.draw()));
  onZone(() => charts.forEach((chart) => chart.draw()));
  document.addEventListener("charts:reset", () => zoom(null));
  document.addEventListener("live:points", ({ detail }) => append(detail));
  document.addEventListener("live:resumed", () => charts.forEach((chart) => !isFrozen(chart) && chart.load({ quietly: true })));
  document.addEventListener("live:part", () => adopt());
  document.addEventListener("annotations-changed", () => charts.forEach((chart) => !isFrozen(chart) && chart.load({ quietly: true })));
  document.body.addEventListener("htmx:afterSettle", () => adopt());
  setInterval(() => isFollowing() && charts.forEach(keepFresh), 1000);
}
