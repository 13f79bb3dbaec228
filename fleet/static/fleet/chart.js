// One chart: fetch, draw, append; loading, empty and error states.
import uPlot from "../vendor/uplot/dist/uPlot.esm.js";
import { drawLegend, keyOf, legendAt } from "./chart-legend.js";
import { reachOf } from "./chart-reach.js";
import { tableOf } from "./chart-table.js";
import { toDrawing } from "./chart-kinds.js";
import { comparedBy, viewed, zoom } from "./range.js";
import { now } from "./time.js";

const LATE_S = 2.5; // points that begin later than this many steps after the last leave a hole
const TIMELESS = new Set(["bars", "course"]);
const RELOAD_MS = 5000; // a chart that cannot be appended to is fetched again, not more often than this
const SETTLED_MS = 200; // a zoom that changes no more is fetched in detail
const FULL_S = 1200; // up to this length a window has its full detail
const AHEAD_S = 120; // so far the earlier window is fetched ahead

export class Chart {
  constructor(figure) {
    this.figure = figure;
    this.id = figure.id;
    this.src = figure.dataset.src;
    this.kind = figure.dataset.chart;
    this.loadedAt = 0;
    this.tookMs = 0;
    this.timesFed = 0; // how often points were appended since it was fetched
    this.isSeen = true;
    this.of = null; // the stretch that was asked for; null: the page's own
    this.base = null; // the page's own stretch
    this.before = null; // the earlier stretch to compare with
    this.hidden = new Set(); // labels of lines that are not shown
    this.span = 900;
    this.body = this.#add("div", "chart-body");
    this.legend = this.#add("div", "chart-legend");
    this.reach = this.#add("p", "chart-reach");
    this.reach.hidden = true;
    this.reset = Object.assign(document.createElement("button"), { type: "button", className: "chart-reset", textContent: "Reset zoom", hidden: true });
    this.reset.addEventListener("click", () => zoom(null));
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

  get isTimed() {
    return !TIMELESS.has(this.kind);
  }

  get isZoomed() {
    return this.isTimed && Boolean(viewed());
  }

  /** The stretch of time it shows, in Unix seconds. */
  get range() {
    const { min, max } = this.plot?.scales.x ?? {};
    return min === undefined || min === null ? null : [min, max];
  }

  /** Fetch the page's own stretch, or what is zoomed to where that needs more than is here. */
  async load({ quietly = false } = {}) {
    this.loadedAt = Infinity; // not again while this one is under way
    const began = Date.now();
    const asked = this.#needed();
    if (!quietly) this.#say("loading", "");
    try {
      const data = await this.#fetch(asked);
      if (`${asked}` !== `${this.#needed()}`) return;
      this.data = data;
      this.of = asked;
      if (!asked) this.base = data.window ?? (data.t?.length ? [data.t[0], data.t.at(-1)] : null);
      this.timesFed = 0;
      delete this.figure.dataset.fed;
      this.draw();
      this.compare();
    } catch (error) {
      this.#fail(error, quietly);
    } finally {
      this.loadedAt = Date.now();
      this.tookMs = this.loadedAt - began;
    }
  }

  async #fetch(range) {
    const url = new URL(this.src, location.href);
    if (range) {
      url.searchParams.delete("window");
      url.searchParams.set("from", Math.floor(range[0]));
      url.searchParams.set("to", Math.ceil(range[1]));
    }
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(await reason(answer));
    return answer.json().catch(() => { throw new Error("Could not read the chart data."); });
  }

  // Other data than the page's own are needed outside of it, and for detail that it lacks.
  #needed() {
    const view = this.kind === "bars" && !/[?&](window|from)=/.test(this.src) ? null : this.kind === "bars" || this.isTimed ? viewed() : null;
    if (!view || !this.base || this.kind === "bars") return view;
    const [from, to] = this.base;
    const isInside = view[0] >= from - 1 && view[1] <= to + 1;
    return isInside && (to - from <= FULL_S || view[1] - view[0] > (to - from) * 0.6) ? null : view;
  }

  /** Fetch what is to be compared with, and draw it. */
  async compare() {
    const by = this.kind === "lines" || this.kind === "stack" ? comparedBy() : 0;
    const shown = this.of ?? this.base;
    if (!by || !shown) {
      if (this.before) this.#redraw(null);
      return;
    }
    this.comparedAt = Date.now();
    const data = await this.#fetch([shown[0] - by, Math.min(shown[1] + AHEAD_S, now() / 1000) - by]).catch(() => null);
    if (by === comparedBy()) this.#redraw({ by, series: [], t: [], ...data });
  }

  #redraw(before) {
    this.before = before;
    this.draw();
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
    const drawing = toDrawing(this.kind, this.#shown(), this);
    if (!drawing) {
      this.#clear();
      this.#say("empty", this.figure.dataset.empty ?? "No data in this time range.");
      this.#scale();
      return;
    }
    const cursor = this.plot?.cursor.idx ?? null;
    this.#clear();
    this.figure.dataset.state = "drawn";
    this.span = drawing.span;
    this.drawing = drawing;
    this.plot = new uPlot({ ...drawing.options, ...this.#size() }, drawing.data, this.body);
    this.#scale();
    drawLegend(this);
    legendAt(this, cursor);
    this.table.refresh();
  }

  // What is hidden has no values; its place, and so its colour, stays.
  #shown() {
    const { data, hidden } = this;
    if (!hidden.size || !data.series) return data;
    return { ...data, series: data.series.map((one) => hidden.has(keyOf(one)) ? { ...one, values: one.values.map(() => null) } : one) };
  }

  /** Show one series only, or all again; or toggle it. */
  pick(key, isToggle) {
    const keys = new Set(this.data.series.map(keyOf));
    const others = [...keys].filter((each) => each !== key);
    const isAlone = !this.hidden.has(key) && others.every((each) => this.hidden.has(each));
    if (!isToggle) this.hidden = new Set(isAlone ? [] : others);
    else if (!this.hidden.delete(key)) this.hidden.add(key);
    if (this.hidden.size === keys.size) this.hidden.clear();
    this.draw();
  }

  /** Add what is new at the right and let go of what is too old at the left. */
  append({ t, values, bad = [], labels = null }) {
    if (!this.data || !this.plot || this.data.labels || this.of) return;
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
    this.timesFed += 1;
    this.figure.dataset.fed = this.timesFed;
    this.data.t.push(...t.slice(first));
    rows.forEach((row, i) => row.push(...values[i].slice(first)));
    // What is zoomed to stays, however old it gets.
    if (!this.isZoomed) this.#forget(this.data.t.at(-1) - this.span);
    if (this.data.window) this.base = this.data.window = [this.data.t.at(-1) - this.span, this.data.t.at(-1)];
    const drawing = toDrawing(this.kind, this.#shown(), this);
    // Rows change places, the worst first, while no pointer is on one.
    if (drawing.order !== this.drawing.order && !this.body.matches(":hover, :focus-within")) {
      this.draw();
      return;
    }
    this.drawing = { ...drawing, order: this.drawing.order };
    this.plot.setData(drawing.data, !this.isZoomed);
    legendAt(this, this.plot.cursor.idx);
  }

  #forget(before) {
    const n = this.data.t.findIndex((moment) => moment >= before);
    if (n <= 0) return;
    this.data.t.splice(0, n);
    for (const row of this.#rows()) row.splice(0, n);
  }

  #rows() {
    if (this.kind !== "heat") return this.data.series.map(({ values }) => values);
    const { values, strengths, peers } = this.data;
    return strengths ? [...values, ...strengths, peers] : values;
  }

  /** Show the chosen stretch of time, or everything again; fetch what of it is not here. */
  zoom() {
    this.#scale();
    clearTimeout(this.settling);
    if (`${this.#needed()}` !== `${this.of}`) this.settling = setTimeout(() => this.load({ quietly: true }), SETTLED_MS);
  }

  #scale() {
    if (!this.isTimed) return;
    const view = viewed();
    this.figure.dataset.zoom = view ? view.join("-") : "";
    this.reset.hidden = !view;
    if (!this.isOnTime) return;
    if (view) this.plot.setScale("x", { min: view[0], max: view[1] });
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
