// One chart: fetch, draw, append; loading, empty and error states.
import uPlot from "../vendor/uplot/dist/uPlot.esm.js";
import { legendOf } from "./chart-legend.js";
import { reachOf } from "./chart-reach.js";
import { tableOf } from "./chart-table.js";
import { toDrawing } from "./chart-kinds.js";

const LATE_S = 2.5; // points that begin later than this many steps after the last leave a hole
const TIMELESS = new Set(["bars", "curve", "course"]);
const RELOAD_MS = 5000; // a chart that cannot be appended to is fetched again, not more often than this

export class Chart {
  constructor(figure, page) {
    this.figure = figure;
    this.page = page;
    this.id = figure.id;
    this.src = figure.dataset.src;
    this.kind = figure.dataset.chart;
    this.loadedAt = 0;
    this.tookMs = 0;
    this.isFed = false;
    this.isSeen = true;
    this.isZoomed = false;
    this.span = 900;
    this.body = this.#add("div", "chart-body");
    this.legend = this.#add("div", "chart-legend");
    this.reach = this.#add("p", "chart-reach");
    this.reach.hidden = true;
    this.reset = Object.assign(document.createElement("button"), { type: "button", className: "chart-reset", textContent: "Zoom out", hidden: true });
    this.reset.addEventListener("click", () => page.zoom(null));
    figure.append(this.reset);
    this.table = tableOf(this);
    this.resize = new ResizeObserver(() => this.#fit());
    this.resize.observe(this.body);
    this.sight = new IntersectionObserver(([entry]) => { this.isSeen = entry.isIntersecting; });
    this.sight.observe(figure);
    this.#say("loading", "");
  }

  get isOnTime() {
    return !this.data?.labels && Boolean(this.plot);
  }

  /** The stretch of time it shows, in Unix seconds. */
  get range() {
    const { min, max } = this.plot?.scales.x ?? {};
    return min === undefined || min === null ? null : [min, max];
  }

  async load({ quietly = false } = {}) {
    this.loadedAt = Infinity; // not again while this one is under way
    const began = Date.now();
    if (!quietly) this.#say("loading", "");
    try {
      const answer = await fetch(this.src, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(await reason(answer));
      this.data = await answer.json().catch(() => { throw new Error("Could not read the chart data."); });
      this.isFed = false;
      this.draw();
    } catch (error) {
      this.#fail(error, quietly);
    } finally {
      this.loadedAt = Date.now();
      this.tookMs = this.loadedAt - began;
    }
  }

  #fail(error, quietly) {
    if (quietly && this.plot) return; // keep what is drawn; the clock says that it is stale
    this.#clear();
    this.#say("error", error.message || "Could not load the chart.");
    const again = Object.assign(document.createElement("button"), { type: "button", textContent: "Try again" });
    again.addEventListener("click", () => this.load());
    this.body.querySelector(".chart-note").append(again);
  }

  /** Draw the present data again, in the current colours and time zone. */
  draw() {
    if (!this.data) return;
    reachOf(this);
    const drawing = toDrawing(this.kind, this.data, this);
    if (!drawing) {
      this.#clear();
      this.#say("empty", this.figure.dataset.empty ?? "No data in this time range.");
      return;
    }
    const kept = this.isZoomed ? this.range : null;
    const cursor = this.plot?.cursor.idx ?? null;
    this.#clear();
    this.figure.dataset.state = "drawn";
    this.span = drawing.span;
    this.drawing = drawing;
    this.plot = new uPlot({ ...drawing.options, ...this.#size() }, drawing.data, this.body);
    if (kept) this.zoom(kept);
    legendOf(this, cursor);
    this.table.refresh();
  }

  /** Add what is new at the right and let go of what is too old at the left. */
  append({ t, values, bad = [], labels = null }) {
    if (!this.data || !this.plot || this.data.labels) return;
    const { series = [], every_s: everyS } = this.data;
    const rows = this.#rows();
    const last = this.data.t.at(-1) ?? -Infinity;
    const first = t.findIndex((moment) => moment > last);
    if (first < 0) return;
    // A part has left its peers: let it stand out.
    const isNews = bad.some((i) => series[i]?.role !== "bad") || labels?.some((label, i) => series[i]?.label !== label);
    const isLate = (this.drawing.isEven || this.kind === "heat") && t[first] - last > LATE_S * everyS;
    if (values.length !== rows.length || isNews || isLate) {
      if (Date.now() - this.loadedAt > RELOAD_MS) this.load({ quietly: true });
      return;
    }
    this.isFed = true;
    this.figure.dataset.fed = "";
    this.data.t.push(...t.slice(first));
    rows.forEach((row, i) => row.push(...values[i].slice(first)));
    this.#forget(this.data.t.at(-1) - this.span);
    if (this.data.window) this.data.window = [this.data.t.at(-1) - this.span, this.data.t.at(-1)];
    const drawing = toDrawing(this.kind, this.data, this);
    this.drawing = drawing;
    this.plot.setData(drawing.data, !this.isZoomed);
    legendOf(this, this.plot.cursor.idx);
  }

  #forget(before) {
    const n = this.data.t.findIndex((moment) => moment >= before);
    if (n <= 0) return;
    this.data.t.splice(0, n);
    for (const row of this.#rows()) row.splice(0, n);
  }

  #rows() {
    return this.kind === "heat" ? this.data.values : this.data.series.map(({ values }) => values);
  }

  /** Show one stretch of time, or everything again. */
  zoom(range) {
    if (!this.plot) return;
    this.isZoomed = Boolean(range);
    this.figure.dataset.zoom = range ? range.map(Math.round).join("-") : "";
    this.reset.hidden = !range;
    if (range) this.plot.setScale("x", { min: range[0], max: range[1] });
    else this.plot.setData(this.plot.data, true);
  }

  destroy() {
    this.#clear();
    this.resize.disconnect();
    this.sight.disconnect();
    return false;
  }

  #clear() {
    this.plot?.destroy();
    this.plot = null;
    this.body.replaceChildren();
    this.legend.replaceChildren();
  }

  #say(state, text) {
    this.figure.dataset.state = state;
    this.figure.toggleAttribute("aria-busy", state === "loading");
    const note = Object.assign(document.createElement("p"), { className: "chart-note", textContent: text });
    this.body.replaceChildren(...(this.plot ? [this.plot.root] : []), note);
  }

  #size() {
    return { width: Math.max(120, this.body.clientWidth), height: Math.max(80, this.body.clientHeight) };
  }

  #fit() {
    if (this.plot && this.body.clientWidth) this.plot.setSize(this.#size());
  }

  #add(tag, name) {
    const element = this.figure.querySelector(`:scope > .${name}`) ?? document.createElement(tag);
    element.className = name;
    this.figure.append(element);
    return element;
  }
}

async function reason(answer) {
  try {
    const body = await answer.json();
    return body.error?.message ? `${body.error.field}: ${body.error.message}` : `Could not load the chart (${answer.status}).`;
  } catch {
    return `Could not load the chart (${answer.status}).`;
  }
}
