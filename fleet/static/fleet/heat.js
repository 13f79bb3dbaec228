// The fleet's heat map: one strip of pixels per node, one pixel per core, cividis.
import { CIVIDIS } from "./palette.js";
import { say } from "./shell.js";
import { ABSENT } from "./units.js";

const NO_DATA = 255;
const FULL = 254;
const cores = new Map(); // node → bytes
let tip = null;

const decode = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const nodeOf = (row) => row.id.slice("heat-".length);
const percent = (byte) => (byte === NO_DATA ? ABSENT : `${Math.round((byte / FULL) * 100)}\u202f%`);

function paint(row) {
  const bytes = cores.get(nodeOf(row));
  const canvas = row.querySelector("canvas");
  if (!bytes || !canvas) return;
  if (canvas.width !== bytes.length) canvas.width = bytes.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(bytes.length, 1);
  bytes.forEach((byte, i) => image.data.set(CIVIDIS[byte], i * 4));
  context.putImageData(image, 0, 0);
  const mean = row.querySelector(".mean");
  const text = percent(meanOf(bytes));
  if (mean && mean.textContent !== text) mean.textContent = text;
}

function meanOf(bytes) {
  const known = bytes.filter((byte) => byte !== NO_DATA);
  return known.length ? known.reduce((sum, byte) => sum + byte, 0) / known.length : NO_DATA;
}

function paintAll() {
  for (const row of document.querySelectorAll(".heatrow")) paint(row);
}

function take(update) {
  for (const [node, packed] of Object.entries(update)) cores.set(node, decode(packed));
  paintAll();
  if (tip && !tip.hidden) describe(tip.row, tip.core);
}

// ---- pointing at a core, by mouse or by arrow keys

function describe(row, core) {
  const bytes = cores.get(nodeOf(row));
  if (!bytes) return "";
  const text = `${nodeOf(row)} · core ${core} · ${percent(bytes[core])}`;
  tip.textContent = text;
  return text;
}

function point(row, core) {
  const canvas = row.querySelector("canvas");
  const box = canvas.getBoundingClientRect();
  tip.row = row;
  tip.core = core;
  tip.hidden = false;
  const text = describe(row, core);
  const left = box.left + ((core + 0.5) / canvas.width) * box.width;
  tip.style.left = `${Math.min(Math.max(left, tip.offsetWidth / 2 + 8), innerWidth - tip.offsetWidth / 2 - 8)}px`;
  tip.style.top = `${box.top - 8}px`;
  return text;
}

function hide() {
  tip.hidden = true;
}

function coreAt(canvas, x) {
  const box = canvas.getBoundingClientRect();
  return Math.min(canvas.width - 1, Math.max(0, Math.floor(((x - box.left) / box.width) * canvas.width)));
}

function move(event) {
  if (event.target.tagName !== "CANVAS") return hide();
  point(event.target.closest(".heatrow"), coreAt(event.target, event.clientX));
}

function open(event) {
  if (event.target.tagName === "CANVAS") event.target.closest(".heatrow").querySelector("a").click();
}

function step(event) {
  const row = event.target.closest?.(".heatrow");
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const rows = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!row || (!by && !rows)) return;
  event.preventDefault();
  const core = tip.row === row || rows ? tip.core ?? 0 : -by;
  const all = [...document.querySelectorAll(".heatrow")];
  const to = rows ? all[Math.min(all.length - 1, Math.max(0, all.indexOf(row) + rows))] : row;
  to.querySelector("a").focus();
  const last = to.querySelector("canvas").width - 1;
  say(point(to, Math.min(last, Math.max(0, core + (by ?? 0)))));
}

export function startHeat() {
  const map = document.getElementById("heat-map");
  if (!map) return;
  tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  document.body.append(tip);
  for (const canvas of map.querySelectorAll("canvas[data-cores]")) cores.set(nodeOf(canvas.closest(".heatrow")), decode(canvas.dataset.cores));
  paintAll();
  document.addEventListener("live:heat", ({ detail }) => take(detail));
  document.addEventListener("live:part", ({ detail }) => detail.id === "heat-map" && paintAll());
  const panel = map.parentElement; // stays when the map is renewed
  panel.addEventListener("pointermove", move);
  panel.addEventListener("pointerleave", hide);
  panel.addEventListener("click", open);
  panel.addEventListener("keydown", step);
  panel.addEventListener("focusout", hide);
  addEventListener("scroll", hide, { passive: true });
}
