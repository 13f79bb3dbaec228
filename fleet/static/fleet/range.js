// The stretch of time that the charts of a page show: zooms and steps, in the address and the
// browser's history; the comparison with an earlier stretch; markers on or off.
import { recall, remember } from "./store.js";
import { isUtc, moment, now, onZone, zoneName } from "./time.js";

const TOGETHER_MS = 700; // one gesture of many moves is one entry of the history
const LEAST_S = 2;
const LONGEST_S = 31 * 86400;
const listeners = new Set();

let whole = () => null; // the stretch of the page as it was loaded
let view = null;
let movedAt = 0;
let before = 0;
let hasMarkers = true;

const nav = () => document.getElementById("time-nav");

/** The chosen stretch in Unix seconds; null: all that the page shows. */
export const viewed = () => view;
/** How many seconds before it the comparison lies; 0: none. */
export const comparedBy = () => before;
export const showsMarkers = () => hasMarkers || !document.getElementById("markers");
/** Call back with what changed: the view, the comparison (compare) or the markers. */
export const onRange = (listener) => listeners.add(listener);

const announce = (what) => listeners.forEach((listener) => listener(what));

function read() {
  const query = new URLSearchParams(location.search);
  const [from, to] = (query.get("zoom") ?? "").split("-").map(Number);
  view = to - from >= LEAST_S && to - from <= LONGEST_S ? [from, to] : null;
  const asked = query.get("compare") ?? "";
  const select = document.getElementById("compare");
  if (select) select.value = asked;
  before = Number(select?.value) || 0;
}

function write(how) {
  const url = new URL(location.href);
  if (view) url.searchParams.set("zoom", view.join("-"));
  else url.searchParams.delete("zoom");
  if (before) url.searchParams.set("compare", before);
  else url.searchParams.delete("compare");
  if (url.href !== location.href) history[how](null, "", url);
}

/** Show one stretch of time in every chart of the page; null: the page's own. */
export function zoom(range) {
  const chosen = range && [Math.round(range[0]), Math.max(Math.round(range[1]), Math.round(range[0]) + LEAST_S)];
  if (`${chosen}` === `${view}`) return;
  const isSame = chosen && view && Date.now() - movedAt < TOGETHER_MS;
  movedAt = Date.now();
  view = chosen;
  write(isSame ? "replaceState" : "pushState");
  show();
  announce("view");
}

// By half a range earlier or later; 0: twice the range. What is not older than the page's own is that, which stays live.
function step(by) {
  const page = whole();
  const from = view ?? page;
  if (!from) return;
  const half = (from[1] - from[0]) / 2;
  const to = Math.min(from[1] + (by || 1) * half, Math.max(now() / 1000, from[1]));
  const start = to - (by ? 2 * half : Math.min(4 * half, LONGEST_S));
  const slack = page ? (page[1] - page[0]) / 4 : 0;
  const isPage = view && page && to >= page[1] - 1 && start <= page[0] + slack && start >= page[0] - 2 * slack;
  movedAt = 0;
  zoom(isPage ? null : [start, to]);
}

// An address of this page with what is not about its range.
function kept(address) {
  const [query, here] = [new URLSearchParams(address), new URLSearchParams(location.search)];
  for (const name of ["compare", "by", "ema"]) if (here.has(name)) query.set(name, here.get(name));
  return `?${query}`;
}

function press(event) {
  const link = event.target.closest("a[href]");
  // Another range of the page is compared with, and its loss is drawn, as in this one.
  if (link) link.href = kept(link.getAttribute("href"));
  const button = event.target.closest("[data-step]");
  if (!button) return;
  if (button.ariaDisabled === "true" && !view) return;
  // Unless its charts are zoomed, a page has addresses for the stretches around it.
  if (button.href && !view) return;
  event.preventDefault();
  step(Number(button.dataset.step));
}

/** Press a button of the time range by its step. */
export const pressStep = (by) => nav()?.querySelector(`[data-step="${by}"]`)?.click();

function show() {
  const box = document.getElementById("zoomed");
  document.body.classList.toggle("is-zoomed", Boolean(view));
  if (!box) return;
  box.hidden = !view;
  if (!view) return;
  const [from, to] = view.map((second) => moment(second * 1000, "clock"));
  const isSameDay = moment(view[0] * 1000, "date") === moment(view[1] * 1000, "date");
  box.querySelector("b").textContent = `${from} to ${isSameDay ? to.slice(-8) : to} ${zoneName(view[1] * 1000)}`;
}

// A field holds a time of the zone that the page shows; the address holds Unix seconds.
function submit(event) {
  const form = event.target.closest(".from-to form");
  if (!form) return;
  event.preventDefault();
  const [from, to] = ["from", "to"].map((name) => form.elements[name]);
  const second = ({ value }) => Date.parse(value + (isUtc() ? "Z" : "")) / 1000;
  to.setCustomValidity(second(to) > second(from) ? "" : "Give a time after the first.");
  if (!form.reportValidity()) return to.setCustomValidity("");
  location.assign(kept(`?from=${second(from)}&to=${second(to)}`));
}

function rezone() {
  const form = document.querySelector(".from-to form");
  for (const field of form?.querySelectorAll("input") ?? []) {
    const ms = Date.parse(`${field.defaultValue}Z`);
    if (!Number.isNaN(ms)) field.value = moment(ms, "full").replace(" ", "T");
  }
  show();
}

export function startRange(wholeRange) {
  whole = wholeRange;
  read();
  const bar = nav();
  const markers = document.getElementById("markers");
  hasMarkers = recall("markers", "on") === "on";
  markers?.setAttribute("aria-pressed", String(hasMarkers));
  markers?.addEventListener("click", () => {
    hasMarkers = !hasMarkers;
    remember("markers", hasMarkers ? "on" : "off");
    markers.setAttribute("aria-pressed", String(hasMarkers));
    announce("markers");
  });
  bar?.addEventListener("click", press);
  bar?.addEventListener("submit", submit);
  document.getElementById("zoomed")?.querySelector("button").addEventListener("click", () => zoom(null));
  document.getElementById("compare")?.addEventListener("change", ({ target }) => {
    before = Number(target.value);
    write("replaceState");
    announce("compare");
  });
  document.addEventListener("charts:reset", () => zoom(null));
  addEventListener("popstate", () => {
    const by = before;
    read();
    show();
    announce("view");
    if (by !== before) announce("compare");
  });
  onZone(rezone);
  rezone();
}
