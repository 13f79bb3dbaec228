// The fleet's heat map: one strip of pixels per node, one pixel per part, coloured by how far it is
// from its peers. It leads to the page of its device: by click, by arrow keys and Enter, by a finger
// and the link that it shows. In a large fleet a strip is many nodes and a pixel is one of them.
import { atThisTime } from "./links.js";
import { heatInks } from "./palette.js";
import { onTheme, say } from "./shell.js";
import { figure } from "./units.js";

const NO_DATA = 255;
const FULL = 254;
const NODES_PER_PAGE = 100; // of the list of nodes
const LIKE_PEERS = 127; // of a byte of a strength
const FAINT = 16; // a strength that is hardly seen
const cells = new Map(); // node → bytes of values, then of strengths
let inks = [];
let tip = null;

const decode = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const runOf = (row) => row.parentElement.getAttribute("aria-label");
const nodeOf = (row) => row.id.slice("heat-".length);
const groupOf = (row) => row.parentElement.dataset;
const text = (row, byte) => figure(byte === NO_DATA ? null : (byte / FULL) * Number(groupOf(row).most), groupOf(row).unit);

/** The colours of all bytes of strengths, in the current theme. */
function mix() {
  const inkOf = heatInks();
  inks = Array.from({ length: 256 }, (_, byte) => inkOf(byte === NO_DATA ? null : (byte - LIKE_PEERS) / LIKE_PEERS));
}

function paint(row) {
  const bytes = cells.get(nodeOf(row));
  const canvas = row.querySelector("canvas");
  if (!bytes || !canvas) return;
  const n = bytes.length / 2;
  if (canvas.width !== n) canvas.width = n;
  const context = canvas.getContext("2d");
  const image = context.createImageData(n, 1);
  for (let i = 0; i < n; i += 1) image.data.set(inks[bytes[n + i]], i * 4);
  context.putImageData(image, 0, 0);
  const known = bytes.subarray(n).filter((byte) => byte !== NO_DATA);
  row.classList.toggle("calm", known.length > 0 && known.every((byte) => Math.abs(byte - LIKE_PEERS) < FAINT));
  const mean = row.querySelector(".mean");
  const words = text(row, meanOf(bytes.subarray(0, n)));
  if (mean && mean.textContent !== words) mean.textContent = words;
}

function meanOf(bytes) {
  const known = bytes.filter((byte) => byte !== NO_DATA);
  return known.length ? known.reduce((sum, byte) => sum + byte, 0) / known.length : NO_DATA;
}

function paintAll() {
  for (const row of document.querySelectorAll(".heatrow")) paint(row);
  rove();
}

function take(update) {
  for (const [node, packed] of Object.entries(update)) {
    cells.set(node, decode(packed));
    const row = document.getElementById(`heat-${node}`);
    if (row) paint(row);
  }
  if (tip && !tip.hidden) describe(tip.row, tip.core);
}

// ---- pointing at a core, by mouse, finger or arrow keys

const linkOf = (row) => row.querySelector("a");
const links = () => [...document.querySelectorAll(".heatrow > a.mono")];

// All nodes together are one tab stop; arrow keys go from node to node.
function rove(to = null) {
  const all = links();
  const chosen = to ?? all.find((link) => link === document.activeElement) ?? all.find((link) => !link.tabIndex && tip?.row?.contains(link)) ?? all[0];
  for (const link of all) link.tabIndex = link === chosen ? 0 : -1;
}

/** The run of a pixel that is a node, and the node's place in it. */
function runAndPlace(row, pixel) {
  const { place, runs } = row.dataset;
  if (!runs) return [runOf(row), Number(place) + pixel];
  const starts = runs.split(",").map((each) => each.split(" "));
  const [run, start] = starts.findLast(([, first]) => Number(first) <= pixel);
  return [run, pixel - Number(start)];
}

/** The page of the device that a core belongs to; of a node without devices its own; the list that a node is on. */
function addressOf(row, core) {
  const { each, place, runs } = row.dataset;
  if (place) {
    const list = new URL(linkOf(row).href);
    const [run, at] = runAndPlace(row, core);
    if (runs) list.searchParams.set("run", run);
    list.searchParams.set("sort", "run");
    list.searchParams.set("page", Math.floor(at / NODES_PER_PAGE) + 1);
    return list.href;
  }
  return each ? `${linkOf(row).href}devices/${Math.floor(core / each)}/` : linkOf(row).href;
}

function describe(row, core) {
  const bytes = cells.get(nodeOf(row));
  if (!bytes) return "";
  const { each, place } = row.dataset;
  const { part } = groupOf(row);
  const n = bytes.length / 2;
  const device = each && part !== "device" ? [`device ${Math.floor(core / each)}`] : [];
  const own = n === 1 && part === "worker" ? [] : [`${part} ${core}`];
  const [run, at] = place ? runAndPlace(row, core) : [];
  const which = place ? [`node ${at + 1} of ${run}`] : [nodeOf(row), ...device, ...own];
  const words = [...which, text(row, bytes[core]), ...against(bytes[n + core])].join(" · ");
  tip.textContent = words;
  return words;
}

/** How a cell is next to its peers, where that is not like them. */
function against(byte) {
  if (byte === NO_DATA || byte === LIKE_PEERS) return [];
  return [byte > LIKE_PEERS ? "above its peers" : "below its peers"];
}

function point(row, core, { isTouch = false } = {}) {
  const canvas = row.querySelector("canvas");
  const box = canvas.getBoundingClientRect();
  tip.row = row;
  tip.core = core;
  tip.hidden = false;
  tip.href = addressOf(row, core);
  tip.classList.toggle("opens", isTouch);
  const words = describe(row, core);
  const left = box.left + ((core + 0.5) / canvas.width) * box.width;
  tip.style.left = `${Math.min(Math.max(left, tip.offsetWidth / 2 + 8), innerWidth - tip.offsetWidth / 2 - 8)}px`;
  tip.style.top = `${box.top - 8}px`;
  return words;
}

function hide() {
  tip.hidden = true;
}

function coreAt(canvas, x) {
  const box = canvas.getBoundingClientRect();
  return Math.min(canvas.width - 1, Math.max(0, Math.floor(((x - box.left) / box.width) * canvas.width)));
}

const isTouch = (event) => event.pointerType === "touch";

function move(event) {
  if (event.target === tip) return;
  if (event.target.tagName !== "CANVAS") return hide();
  point(event.target.closest(".heatrow"), coreAt(event.target, event.clientX), { isTouch: isTouch(event) });
}

// A finger is wider than a core: it chooses one, and the link that appears opens its device.
function open(event) {
  if (event.target === tip) return;
  if (event.target.tagName !== "CANVAS") return hide();
  move(event);
  if (!isTouch(event)) location.assign(atThisTime(tip.href));
}

function step(event) {
  const row = event.target.closest?.(".heatrow");
  if (!row) return;
  if (event.key === "Enter" && !tip.hidden && tip.row === row && event.target === linkOf(row)) {
    event.preventDefault();
    return location.assign(atThisTime(tip.href));
  }
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const rows = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!by && !rows) return;
  event.preventDefault();
  const core = tip.row === row || rows ? tip.core ?? 0 : -by;
  const all = [...document.querySelectorAll(".heatrow")];
  const to = rows ? all[Math.min(all.length - 1, Math.max(0, all.indexOf(row) + rows))] : row;
  linkOf(to).focus();
  rove(linkOf(to));
  const last = to.querySelector("canvas").width - 1;
  say(point(to, Math.min(last, Math.max(0, core + (by ?? 0)))));
}

// What the page brings along, and each renewal of the map of a run.
function read(map) {
  for (const canvas of map.querySelectorAll("canvas[data-cells]")) cells.set(nodeOf(canvas.closest(".heatrow")), decode(canvas.dataset.cells));
  paintAll();
}

// The folded maps of a node unfold when something begins to stand out; what a viewer opened stays as it is.
function unfoldMaps({ detail: part }) {
  if (part.id === "standout" && "found" in part.dataset) document.querySelector("#maps:not([open])")?.dispatchEvent(new Event("stands-out"));
}

export function startHeat() {
  document.addEventListener("live:part", unfoldMaps);
  const map = document.getElementById("heat-map");
  if (!map) return;
  const panel = map.parentElement; // stays when the map is renewed
  tip = Object.assign(document.createElement("a"), { className: "tip", hidden: true, tabIndex: -1 });
  panel.append(tip);
  mix();
  read(map);
  onTheme(() => { mix(); paintAll(); });
  document.addEventListener("live:heat", ({ detail }) => take(detail));
  document.addEventListener("live:part", ({ detail }) => detail.id === "heat-map" && read(detail));
  panel.addEventListener("pointermove", move);
  panel.addEventListener("pointerleave", (event) => isTouch(event) || hide());
  panel.addEventListener("click", open);
  panel.addEventListener("keydown", step);
  panel.addEventListener("focusout", hide);
  addEventListener("scroll", hide, { passive: true });
}
