// All charts of a page: find them, refresh them, link cursors and zoom.
import { Chart } from "./chart.js";
import { isFollowing } from "./live.js";
import { onRange, startRange, viewed } from "./range.js";
import { onTheme } from "./shell.js";
import { onZone } from "./time.js";

// How often a chart without live points asks again, by the length of its window.
const AGAIN_MS = [[20 * 60, 5000], [2 * 3600, 20000], [48 * 3600, 60000], [Infinity, 300000]];

const FED_AGAIN_MS = 120000; // for new markers
const COMPARED_AGAIN_MS = 90000;

const CHANGED = { view: () => charts.forEach((chart) => chart.zoom()), compare: () => charts.forEach((chart) => chart.compare()), markers: redraw };

let charts = [];
const due = new Set(); // charts to draw again
let nFiring = null;

const onTime = () => charts.filter((chart) => chart.isOnTime);

/** The address of this page, frozen at what its charts show now. */
export function frozenLink() {
  const whole = document.querySelector("[data-frozen-link]");
  if (whole && !viewed()) return new URL(whole.dataset.frozenLink, location.href).href;
  const chart = onTime().find((chart) => chart.range) ?? null;
  const nowS = Math.floor(Date.now() / 1000);
  const [from, to] = viewed() ?? chart?.range ?? [nowS - 900, nowS];
  const link = new URL(location.href);
  if (link.searchParams.has("from") && !viewed()) return link.href;
  for (const name of ["window", "zoom"]) link.searchParams.delete(name);
  link.searchParams.set("from", Math.floor(from));
  link.searchParams.set("to", Math.ceil(to));
  return link.href;
}

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

/** Draw all charts again, one per frame and those in sight first: what was clicked shows its effect before. */
async function redraw() {
  const isUnderWay = due.size > 0;
  for (const chart of charts) due.add(chart);
  while (!isUnderWay && due.size) {
    await painted();
    const next = [...due].find(({ isSeen }) => isSeen) ?? [...due][0];
    due.delete(next);
    if (next.figure.isConnected) next.draw();
  }
}

function append(points) {
  for (const chart of charts) if (points[chart.id]) chart.append(points[chart.id]);
}

const isFrozen = (chart) => new URL(chart.src, location.href).searchParams.has("from");

const reload = (chart) => !isFrozen(chart) && !chart.of && chart.load({ quietly: true });

function keepFresh(chart) {
  const wait = chart.timesFed ? FED_AGAIN_MS : AGAIN_MS.find(([span]) => chart.span <= span)[1];
  const isDue = Date.now() - chart.loadedAt > Math.max(wait, 20 * chart.tookMs);
  if (isDue && chart.isSeen) reload(chart);
  else if (chart.before && Date.now() - chart.comparedAt > COMPARED_AGAIN_MS && !isFrozen(chart) && !chart.of) chart.compare();
}

// An alert fired, or is over: it is to be marked.
function heed({ firing = nFiring }) {
  if (firing !== nFiring && nFiring !== null) setTimeout(() => charts.forEach(reload), 1000);
  nFiring = firing;
}

function adopt(root = document) {
  charts = charts.filter((chart) => chart.figure.isConnected || chart.destroy());
  for (const figure of root.querySelectorAll("figure.chart:not([data-state])")) {
    if (figure.closest("details:not([open])")) continue; // drawn when it is opened
    const chart = new Chart(figure);
    charts.push(chart);
    chart.load();
  }
}

export function startCharts() {
  startRange(() => charts.find((chart) => chart.isTimed && chart.base)?.base ?? null);
  adopt();
  onRange((what) => CHANGED[what]());
  onTheme(redraw);
  onZone(redraw);
  document.addEventListener("live:points", ({ detail }) => append(detail));
  document.addEventListener("live:resumed", () => charts.forEach(reload));
  document.addEventListener("live:tick", ({ detail }) => heed(detail));
  document.addEventListener("live:part", () => adopt());
  document.addEventListener("toggle", () => adopt(), true);
  for (const name of ["annotations-changed", "drills-changed"]) document.addEventListener(name, () => charts.forEach(reload));
  document.body.addEventListener("htmx:afterSettle", () => adopt());
  setInterval(() => isFollowing() && charts.forEach(keepFresh), 1000);
}
