// The tooltip of a chart, for pointer, arrow keys and screen readers.
import { nameOf, valueBefore } from "./chart-before.js";
import { groupAt, groups, said } from "./chart-events.js";
import { keyOf, legendAt, shapeOf, swatch } from "./chart-legend.js";
import { colour } from "./palette.js";
import { say } from "./shell.js";
import { figure } from "./units.js";

const MOST = 9;
const GAP = 12; // pixels between the cursor and the tooltip
const DRAGGED = 4; // pixels: more is no click

/**
 * A uPlot plugin; ``describe`` says what stands above the figures, and which figures; ``place`` what
 * a bar or a row of a heat map is, and its page; ``n`` how many rows there are.
 */
export function pointer(chart, describe) {
  const tip = Object.assign(document.createElement("div"), { className: "chart-tip", hidden: true });
  const rowsAt = describe.rows ?? ((i) => figuresAt(chart, i));
  let isTouch = false;
  const placeAt = (u) => {
    const { idx, left, top } = u.cursor;
    const isOver = idx !== null && idx !== undefined && left >= 0;
    return (isOver && describe.place?.(idx, u.posToVal(Math.max(top, 0), "y"))) || null;
  };

  function setCursor(u) {
    const { idx, left, top } = u.cursor;
    legendAt(chart, idx);
    const isMine = u.over.matches(":hover") || u.root.parentElement === document.activeElement;
    tip.hidden = !isMine || idx === null || idx === undefined || left < 0;
    if (tip.hidden) return;
    const y = u.posToVal(Math.max(top, 0), "y");
    const marked = groupAt(u, chart.data.events, left);
    const marks = marked ? said(marked, chart.isTimed).map(([words, time]) => entry(chart, [null, words, time])) : [];
    const place = placeAt(u);
    u.over.classList.toggle("has-link", Boolean(place || marked?.events.some((event) => event[4])));
    // A finger is wider than a cell: it chooses one, and the link that appears leads on.
    const more = place && isTouch ? [Object.assign(document.createElement("a"), { href: addressOf(chart, place), textContent: `Open ${place[0]}`, tabIndex: -1 })] : [];
    tip.replaceChildren(heading(describe.title(idx, y)), ...marks, ...rowsAt(idx, y).map((row) => entry(chart, row)), ...more);
    const width = u.over.clientWidth;
    const at = left > width / 2 ? left - tip.offsetWidth - GAP : left + GAP;
    tip.style.left = `${Math.max(-u.over.offsetLeft, Math.min(at, width + GAP - tip.offsetWidth))}px`;
  }

  function ready(u) {
    u.over.append(tip);
    // A tap on the link of the tip moves no cursor: that would replace the link.
    for (const name of ["pointerdown", "pointermove", "mousedown", "mousemove", "mouseleave"]) tip.addEventListener(name, (event) => event.stopPropagation());
    u.root.setAttribute("aria-hidden", "true");
    const body = u.root.parentElement;
    body.tabIndex = 0;
    body.setAttribute("role", "group");
    const n = groups(u, chart.data.events).length;
    const marks = describe.n ? "; up and down choose a row, Enter opens its page" : describe.place ? "; Enter opens a page" : n ? `; up and down walk ${n} markers, Enter opens one` : "";
    const name = chart.figure.querySelector("figcaption")?.textContent.split(",")[0] ?? "Chart";
    body.setAttribute("aria-label", `${name}: left and right read it${marks}`);
    body.onkeydown = (event) => {
      isTouch = false;
      return enter(event, placeAt(u)) || step(u, event, describe, rowsAt) || walk(u, event, chart);
    };
    const enter = (event, place) => event.key === "Enter" && place && (location.assign(addressOf(chart, place)), true);
    let from = null;
    u.over.addEventListener("pointerdown", (event) => {
      from = event.clientX;
      isTouch = event.pointerType === "touch";
    });
    u.over.addEventListener("click", ({ clientX, target }) => {
      if (Math.abs(clientX - from) >= DRAGGED || target.closest("a")) return;
      const place = placeAt(u);
      if (place && !isTouch) location.assign(addressOf(chart, place));
      else visit(groupAt(u, chart.data.events, u.cursor.left));
    });
    body.onblur = ({ relatedTarget }) => { tip.hidden = !tip.contains(relatedTarget); };
  }

  return { hooks: { ready, setCursor } };
}

// The page of a place, at the time that the chart shows.
function addressOf(chart, [, url]) {
  const asked = new URL(chart.src, location.href).searchParams;
  const query = new URLSearchParams(["window", "from", "to"].filter((name) => asked.has(name)).map((name) => [name, asked.get(name)]));
  const zoomed = new URLSearchParams(location.search).get("zoom");
  if (zoomed) query.set("zoom", zoomed);
  return query.size ? `${url}?${query}` : url;
}

// A marker opens the page about it.
function visit(group) {
  const url = group?.events.find((event) => event[4])?.[4];
  if (url) location.assign(url);
}

// Up and down go from marker to marker.
function walk(u, event, chart) {
  const all = groups(u, chart.data.events);
  const at = groupAt(u, chart.data.events, u.cursor.left);
  if (event.key === "Enter") return visit(at);
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by || !all.length) return;
  event.preventDefault();
  const here = u.cursor.left ?? -1;
  const next = by > 0 ? all.find(({ x }) => x > here + 1) ?? all[0] : all.findLast(({ x }) => x < here - 1) ?? all.at(-1);
  u.setCursor({ left: next.x, top: u.over.clientHeight / 2 });
  say(said(next, chart.isTimed).map((words) => words.join(" ")).join(", "));
}

function step(u, event, describe, rowsAt) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
  const down = (describe.n && { ArrowUp: -1, ArrowDown: 1 }[event.key]) || 0;
  if (!by && !down) return false;
  event.preventDefault();
  const last = u.data[0].length - 1;
  const jump = event.shiftKey ? 10 : 1;
  const at = Math.min(last, Math.max(0, (u.cursor.idx ?? last + 1) + by * jump));
  const top = describe.n ? u.valToPos(rowAt(u, describe.n) + down * jump, "y") : u.over.clientHeight / 2;
  u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: Math.min(u.over.clientHeight - 1, Math.max(0, top)) });
  const y = u.posToVal(u.cursor.top, "y");
  say([describe.title(at, y), ...rowsAt(at, y).map(([, label, value]) => `${label} ${value}`)].join(", "));
  return true;
}

// The middle of the row under the cursor; of the first, where there is none.
function rowAt(u, n) {
  const { top } = u.cursor;
  return Math.min(n - 1, Math.max(0, Math.floor(top >= 0 ? u.posToVal(top, "y") : 0))) + 0.5;
}

/** The series at one moment: those that matter by name, of the rest the highest. */
function figuresAt(chart, i) {
  const { series, unit, t } = chart.data;
  let nth = -1;
  const all = series.map((one) => {
    const { label, role, values } = one;
    if (!role) nth += 1;
    return [{ role, index: nth, shape: shapeOf(series, role, nth) }, label, values[i], role === "bad", keyOf(one)];
  }).filter((row) => !chart.hidden.has(row[4]));
  const shown = all.length <= MOST ? all : loudest(all);
  return shown.map(([ink, label, value]) => {
    const earlier = chart.before ? valueBefore(chart, label, t[i]) : null;
    return [ink, label, `${figure(value, unit)}${earlier === null ? "" : `, ${nameOf(chart.before.by)} ${figure(earlier, unit)}`}`];
  });
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
    row.append(swatch(colour(ink.role, ink.index), ink.role, ink.shape));
  }
  const text = typeof value === "string" ? value : figure(value, chart.data.unit);
  row.append(label, Object.assign(document.createElement("em"), { textContent: text }));
  return row;
}
