// The tooltip of the pair matrix, for pointer, arrow keys and screen readers.
import { say } from "./shell.js";
import { figure } from "./units.js";

const UNITS = { p50_s: "s", p99_s: "s", bandwidth_bytes_per_s: "bytes_per_s" };
const SVG = "http://www.w3.org/2000/svg";
const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
let answer = null, at = null; // what was measured, and the cell that is read

function fetched(address) {
  answer ??= fetch(address, { headers: { Accept: "application/json" } }).then((it) => (it.ok ? it.json() : null)).catch(() => null);
  return answer;
}

function words(data, name, row, column) {
  const pair = `${data.nodes[row]} and ${data.nodes[column]}`;
  if (row === column) return data.nodes[row];
  const value = data[name][row][column];
  return `${pair}: ${value === null ? "no response, or not probed" : figure(value, UNITS[name])}`;
}

function frame(shape, row, column, n) {
  const { left, side } = shape.dataset;
  const cell = side / n;
  const box = shape.querySelector(".at") ?? shape.querySelector("svg").appendChild(document.createElementNS(SVG, "rect"));
  const place = { class: "at", x: Number(left) + column * cell, y: row * cell, width: cell, height: cell };
  for (const [name, value] of Object.entries(place)) box.setAttribute(name, value);
  return box;
}

async function read(shape, place, isSpoken) {
  const data = await fetched(shape.closest("[data-pairs]").dataset.pairs);
  if (!data) return;
  const n = data.nodes.length;
  const [row, column] = place(n).map((i) => Math.min(n - 1, Math.max(0, i)));
  at = [row, column];
  const box = frame(shape, row, column, n).getBoundingClientRect();
  tip.textContent = words(data, shape.dataset.figure, row, column);
  tip.hidden = false;
  tip.style.left = `${Math.min(Math.max(box.left + box.width / 2, tip.offsetWidth / 2 + 8), innerWidth - tip.offsetWidth / 2 - 8)}px`;
  tip.style.top = `${box.top - 8}px`;
  if (isSpoken) say(tip.textContent);
}

function hide() {
  tip.hidden = true;
  document.querySelectorAll(".matrix .at").forEach((box) => box.remove());
}

function under(event) {
  const shape = event.target.closest?.(".matrix");
  const image = shape?.querySelector("image");
  if (!image) return hide();
  const box = image.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  if (x < 0 || y < 0 || x > 1 || y > 1) return hide();
  read(shape, (n) => [Math.floor(y * n), Math.floor(x * n)], false);
}

function step(event) {
  const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const shape = event.target.closest?.(".matrix");
  if (!by || !shape) return;
  event.preventDefault();
  read(shape, () => (at ? [at[0] + by[0], at[1] + by[1]] : [0, 1]), true);
}

function open() {
  for (const svg of document.querySelectorAll(".matrix svg")) svg.setAttribute("tabindex", "0");
}

document.body.append(tip);
document.addEventListener("pointermove", under);
document.addEventListener("keydown", step);
document.addEventListener("focusout", hide);
addEventListener("scroll", hide, { passive: true });
// While it is probed, what was read before is old with every part.
document.body.addEventListener("htmx:afterSettle", () => { answer = null; open(); });
open();
