// Relative times, updated every second; clock times in UTC or local time.
import { recall, remember } from "./store.js";

const NBSP = "\u202f";
let zone = recall("zone", "utc");
let skewMs = 0; // the server's clock less the browser's
const listeners = new Set();

export const now = () => Date.now() + skewMs;
export const isUtc = () => zone === "utc";
export const onZone = (listener) => listeners.add(listener);

/** Learn the server's clock from something it just said. */
export function setServerNow(seconds) {
  const skew = seconds * 1000 - Date.now();
  if (Math.abs(skew - skewMs) > 400) skewMs = skew;
}

const two = (n) => String(n).padStart(2, "0");

function parts(ms) {
  const d = new Date(ms);
  return isUtc()
    ? [d.getUTCFullYear(), d.getUTCMonth() + 1, d.getUTCDate(), d.getUTCHours(), d.getUTCMinutes(), d.getUTCSeconds()]
    : [d.getFullYear(), d.getMonth() + 1, d.getDate(), d.getHours(), d.getMinutes(), d.getSeconds()];
}

export function zoneName(ms = now()) {
  if (isUtc()) return "UTC";
  const minutes = -new Date(ms).getTimezoneOffset();
  const hours = Math.trunc(Math.abs(minutes) / 60);
  const rest = Math.abs(minutes) % 60;
  return `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${two(rest)}` : ""}`;
}

const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
const hm = ([, , , h, m]) => `${two(h)}:${two(m)}`;
const time = (all) => `${hm(all)}:${two(all[5])}`;
const date = ([y, mo, d]) => `${d} ${MONTHS[mo - 1]}${y === parts(now())[0] ? "" : ` ${y}`}`;
// What is not today has its date.
const dated = (all, text) => (`${all.slice(0, 3)}` === `${parts(now()).slice(0, 3)}` ? text : `${date(all)} ${text}`);
const FORMS = {
  hm,
  time,
  date,
  clock: (all) => dated(all, time(all)),
  minute: (all) => dated(all, hm(all)),
  day: (all) => `${date(all)} ${hm(all)}`,
  full: (all) => `${all[0]}-${two(all[1])}-${two(all[2])} ${time(all)}`,
};

export const moment = (ms, form) => FORMS[form](parts(ms));

/** A time with tenths of a second. */
export function tenths(ms) {
  const n = Math.round(ms / 100);
  return `${moment(n * 100, "full")}.${n % 10}`;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const minutes = Math.floor(whole / 60), hours = Math.floor(whole / 3600), days = Math.floor(whole / 86400);
  if (days) return `${days}${NBSP}d${hours % 24 ? ` ${hours % 24}${NBSP}h` : ""}`;
  if (hours) return `${hours}${NBSP}h${minutes % 60 ? ` ${minutes % 60}${NBSP}min` : ""}`;
  return minutes ? `${minutes}${NBSP}min` : `${whole}${NBSP}s`;
}

/** Write every <time data-form>, and every name of the zone, below an element again. */
export function refreshTimes(root = document) {
  for (const element of root.querySelectorAll("[data-zone]")) if (element.textContent !== zoneName()) element.textContent = zoneName();
  for (const element of root.querySelectorAll("time[data-form]")) {
    const ms = Date.parse(element.dateTime);
    if (Number.isNaN(ms)) continue;
    const form = element.dataset.form;
    const text = form === "ago" ? duration((now() - ms) / 1000) : moment(ms, form);
    if (element.textContent !== text) element.textContent = text;
    const title = `${moment(ms, "full")} ${zoneName(ms)}`;
    if (element.title !== title) element.title = title;
  }
}

function showZone() {
  const button = document.getElementById("zone");
  if (!button) return;
  button.textContent = zoneName();
  button.setAttribute("aria-label", `Times in ${zoneName()}; switch to ${isUtc() ? "local time" : "UTC"}`);
}

export function startTimes() {
  showZone();
  refreshTimes();
  setInterval(refreshTimes, 1000);
  document.getElementById("zone")?.addEventListener("click", () => {
    zone = isUtc() ? "local" : "utc";
    remember("zone", zone);
    showZone();
    refreshTimes();
    for (const listener of listeners) listener();
  });
}
