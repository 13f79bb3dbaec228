// The live parts of the page: morphs partials, passes on points and heat map data.
// They pause in hidden tabs, and the header shows the age of the data.
import { startStream } from "./stream.js";
import { moment, now, onZone, refreshTimes, setServerNow, duration } from "./time.js";
import { say } from "./shell.js";

const STALE_AFTER_MS = 5000;
const SILENT_AFTER_MS = 6000; // each second something is heard
const HIDDEN_GRACE_MS = 8000;
const EXPLAINED_AFTER_MS = 8000; // a hiccup needs no explanation
const WORDS = { live: "live", stale: "stale", paused: "paused", reconnecting: "reconnecting", off: "frozen" };

let stream = null;
let isConnected = false;
let isOpen = false;
let wasOpen = false;
let hiddenTimer = 0;
let heardAt = 0;
let tick = null;
let why = "";
let reporting = null; // nodes that report, and nodes that should, while data are old
let paused = false;
let brokeOff = false;
let nUnacknowledged = null;
let troubledSince = 0;

const main = () => document.querySelector("main[data-live]");

/** The stream of all tabs of this browser; `giveUp` is called where that cannot be had. */
function sharedStream(hear, giveUp) {
  const { liveUrl, liveWorker } = document.body.dataset;
  const worker = new SharedWorker(liveWorker, { type: "module", name: liveUrl });
  let topic = null;
  let answeredAt = now();
  worker.addEventListener("error", giveUp);
  worker.port.addEventListener("message", ({ data: [name, data] }) => {
    answeredAt = now();
    if (name === "refused") giveUp();
    else if (topic) hear(name, data);
  });
  worker.port.start();
  return {
    follow(wanted) {
      topic = wanted;
      answeredAt = now();
      worker.port.postMessage(topic);
    },
    watch() {
      if (!topic) return;
      if (now() - answeredAt > SILENT_AFTER_MS) giveUp();
      else worker.port.postMessage(topic);
    },
  };
}

/** A stream of this tab alone. */
function ownStream(hear) {
  const own = startStream(document.body.dataset.liveUrl, (_, name, data) => hear(name, data));
  return { follow: (topic) => own.follow(topic ? [topic] : []), watch: own.watch };
}

function openStream() {
  if (!window.SharedWorker) return ownStream(hearEvent);
  try {
    return sharedStream(hearEvent, useOwnStream);
  } catch {
    return ownStream(hearEvent); // a browser without modules in workers
  }
}

function useOwnStream() {
  stream.follow(null);
  stream = ownStream(hearEvent);
  if (isConnected) connect();
}

function announce(name, detail) {
  document.dispatchEvent(new CustomEvent(`live:${name}`, { detail }));
}

/** Put a rendered part in the place of the element with its name. */
function morph(id, html) {
  const element = document.getElementById(id);
  if (!element) return;
  Idiomorph.morph(element, html, { morphStyle: "outerHTML", ignoreActiveValue: true, callbacks: KEEP });
  const renewed = document.getElementById(id);
  if (!renewed) return;
  htmx.process(renewed);
  refreshTimes(renewed);
  announce("part", renewed);
}

const isFold = (name, node) => (name === "aria-expanded" && node.classList.contains("fold")) || (name === "open" && node.classList.contains("fold-panel"));

// What the viewer opened, chose or drew is not the server's to change.
const KEEP = {
  beforeAttributeUpdated: (name, node) => !(name === "open" && (node.tagName === "DETAILS" || node.tagName === "DIALOG")) && !isFold(name, node) && !(name === "class" && node.classList.contains("selected")),
  beforeNodeMorphed: (node) => !(node instanceof Element && (node.matches("figure.chart[data-state]") || node.hasAttribute("data-keep"))),
};

function connect() {
  if (!main() || paused || document.hidden) return;
  stream ??= openStream();
  isConnected = true;
  heardAt = now();
  stream.follow(main().dataset.live);
  show();
}

function disconnect() {
  stream?.follow(null);
  isConnected = false;
  setOpen(false);
  brokeOff = true;
}

function setOpen(is) {
  if (is === isOpen) return;
  isOpen = is;
  if (is) {
    wasOpen = true;
    heardAt = now();
    if (brokeOff) announce("resumed");
  }
  brokeOff = !is;
  show();
}

function hearEvent(name, data) {
  if (name === "is-open") setOpen(data);
  else if (name === "tick") hear(JSON.parse(data));
  else if (name === "points" || name === "heat") announce(name, JSON.parse(data));
  else morph(name, data);
}

function hear(said) {
  heardAt = now();
  setServerNow(said.now);
  if (said.tick !== null) tick = said.tick * 1000;
  why = said.why;
  reporting = said.reporting ?? null;
  if ("firing" in said) showUnacknowledged(said.firing);
  announce("tick", said);
  show();
}

function showUnacknowledged(n) {
  const count = document.getElementById("firing-count");
  if (count) count.textContent = n ? String(n) : "";
  count?.setAttribute("aria-label", `${n} unacknowledged`);
  if (nUnacknowledged !== null && n !== nUnacknowledged) say(`${n} alert${n === 1 ? "" : "s"} unacknowledged`);
  nUnacknowledged = n;
  document.title = document.title.replace(/^\(\d+\) /, "");
  if (n) document.title = `(${n}) ${document.title}`;
  badge(n);
}

/** Show on the icon of the tab how many alerts wait for someone; more than nine as a dot. */
function badge(n) {
  const icon = document.querySelector("link[rel=icon]");
  if (!icon) return;
  icon.dataset.plain ??= icon.href;
  const count = n > 9 ? "" : `<text x="21" y="27.5" font-family="sans-serif" font-size="19" font-weight="700" text-anchor="middle" fill="#fff">${n}</text>`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#151c23"/><path d="M2 12h5l2-6 3 9 2-5h3" fill="none" stroke="#e8a33a" stroke-width="2.4"/><circle cx="21" cy="21" r="11" fill="#d3352b"/>${count}</svg>`;
  icon.href = n ? `data:image/svg+xml,${encodeURIComponent(svg)}` : icon.dataset.plain;
}

function state() {
  if (!main()) return "off";
  if (paused) return "paused";
  if (!isOpen || now() - heardAt > SILENT_AFTER_MS) return "reconnecting";
  return why || tick === null || now() - tick > STALE_AFTER_MS ? "stale" : "live";
}

function show() {
  const clock = document.getElementById("clock");
  if (!clock) return;
  const is = state();
  const age = tick === null ? "" : ` ${duration((now() - tick) / 1000)}`;
  const word = document.getElementById("clock-word");
  const isFirst = is === "reconnecting" && !wasOpen;
  const text = is === "stale" ? (tick === null ? "no data" : `stale${age}`) : isFirst ? "connecting" : WORDS[is];
  if (clock.dataset.state !== is) clock.dataset.state = is;
  if (word.textContent !== text) word.textContent = text;
  const asOf = document.getElementById("as-of");
  if (tick !== null) asOf.textContent = moment(tick, "clock");
  const title = `Data as of ${asOf.textContent}: ${text}${is === "stale" && why ? `, ${why}` : ""}. Click or p: ${paused ? "resume" : "pause"}`;
  if (clock.title !== title) clock.title = title;
  const isTroubled = is === "stale" || is === "reconnecting";
  document.body.classList.toggle("is-stale", isTroubled && !isFirst);
  explain(isTroubled, is === "stale" ? why : "the server is not responding");
}

/** Say above the page what is wrong and how old its data are, once it lasts. */
function explain(isTroubled, reason) {
  const box = document.getElementById("why");
  troubledSince = isTroubled ? troubledSince || now() : 0;
  const isLasting = isTroubled && now() - troubledSince > EXPLAINED_AFTER_MS;
  const text = reason || tick === null ? outage(reason || "no nodes are reporting") : lateness();
  if (isLasting && box.textContent !== text) box.textContent = text;
  if (box.hidden !== isLasting) return;
  box.hidden = !isLasting;
  // Its age changes each second: only the first text is spoken.
  if (isLasting) say(text);
}

function outage(reason) {
  const sentence = `${reason[0].toUpperCase()}${reason.slice(1)}.`;
  return tick === null ? sentence : `${sentence} Showing data from ${moment(tick, "clock")}.`;
}

function lateness() {
  const age = `Data is ${duration((now() - tick) / 1000)} old`;
  if (!reporting) return `${age}.`;
  const [n, all] = reporting;
  return `${age}; ${n === all ? "all nodes reporting" : `${n} of ${all} nodes report`}.`;
}

export function togglePause() {
  if (!main()) return;
  paused = !paused;
  if (paused) disconnect();
  else connect();
  show();
}

export const isFollowing = () => Boolean(main()) && !paused && !document.hidden;

function watch() {
  if (isConnected) stream.watch();
  show();
}

export function startLive() {
  // Also where htmx puts an answer in the place of a panel.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !isFold(name, node);
  document.getElementById("clock")?.addEventListener("click", togglePause);
  onZone(show);
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) hiddenTimer = setTimeout(disconnect, HIDDEN_GRACE_MS);
    else if (!isConnected) connect();
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", ({ persisted }) => persisted && connect());
  connect();
  show();
  setInterval(watch, 1000);
}
