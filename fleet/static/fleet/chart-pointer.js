// The tooltip of a chart, for pointer, arrow keys and screen readers.
import { legendOf } from "./chart-legend.js";
import { colour } from "./palette.js";
import { say } from "./shell.js";
import { figure } from "./units.js";

const MOST = 9;

/** A uPlot plugin; ``describe`` says what stands above the figures, and which figures. */
export function pointer(chart, describe) {
  const tip = Object.assign(document.createElement("div"), { className: "chart-tip", hidden: true });
  const rowsAt = describe.rows ?? ((i) => figuresAt(chart, i));

  function setCursor(u) {
    const { idx, left, top } = u.cursor;
    legendOf(chart, idx);
    const isMine = u.over.matches(":hover") || u.root.parentElement === document.activeElement;
    tip.hidden = !isMine || idx === null || idx === undefined || left < 0;
    if (tip.hidden) return;
    const y = u.posToVal(Math.max(top, 0), "y");
    tip.replaceChildren(heading(describe.title(idx, y)), ...rowsAt(idx, y).map((row) => entry(chart, row)));
    tip.classList.toggle("at-left", left > u.over.clientWidth / 2);
    tip.style.left = `${left}px`;
  }

  function ready(u) {
    u.over.append(tip);
    u.root.setAttribute("aria-hidden", "true");
    const body = u.root.parentElement;
    body.tabIndex = 0;
    body.setAttribute("role", "group");
    body.setAttribute("aria-label", `${chart.figure.getAttribute("aria-label") ?? "Chart"}: arrow keys read it`);
    body.onkeydown = (event) => step(u, event, describe, rowsAt);
    body.onblur = () => { tip.hidden = true; };
  }

  return { hooks: { ready, setCursor } };
}

function step(u, event, describe, rowsAt) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const last = u.data[0].length - 1;
  const jump = event.shiftKey ? 10 : 1;
  const at = Math.min(last, Math.max(0, (u.cursor.idx ?? last + 1) + by * jump));
  u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: u.over.clientHeight / 2 });
  const y = u.posToVal(u.over.clientHeight / 2, "y");
  say([describe.title(at, y), ...rowsAt(at, y).map(([, label, value]) => `${label} ${value}`)].join(", "));
}

/** The series at one moment: those that matter by name, of the rest the highest. */
function figuresAt(chart, i) {
  const { series, unit } = chart.data;
  let nth = -1;
  const all = series.map(({ label, role, values }) => {
    if (!role) nth += 1;
    return [{ role, index: nth }, label, values[i], role === "bad"];
  });
  const shown = all.length <= MOST ? all : loudest(all);
  return shown.map(([ink, label, value]) => [ink, label, figure(value, unit)]);
}

function loudest(all) {
  const order = [...all].sort((a, b) => b[3] - a[3] || (b[2] ?? -Infinity) - (a[2] ?? -Infinity));
  return order.slice(0, MOST);
}

function heading(text) {
  return Object.assign(document.createElement("b"), { textContent: text });
}

function entry(chart, [ink, label, value]) {
  const row = document.createElement("span");
  if (ink) {
    const swatch = document.createElement("i");
    swatch.style.background = colour(ink.role, ink.index);
    row.append(swatch);
  }
  const text = typeof value === "string" ? value : figure(value, chart.data.unit);
  row.append(label, Object.assign(document.createElement("em"), { textContent: text }));
  return row;
}
