// Touch on a chart: one finger reads or pans, two fingers zoom, vertical swipes scroll the page.
import { zoom } from "./range.js";

const LEAST_S = 10; // closer than this nothing more is to be seen

/** A uPlot plugin for charts over time. */
export function touch(chart) {
  const fingers = new Map();
  let began = null;

  const begin = () => {
    const range = chart.range;
    began = fingers.size && range ? { range, at: [...fingers.values()] } : null;
  };

  function down(event) {
    if (event.pointerType !== "touch") return;
    fingers.set(event.pointerId, event.clientX);
    begin();
  }

  function up(event) {
    if (fingers.delete(event.pointerId)) begin();
  }

  function move(u, event) {
    if (!fingers.has(event.pointerId) || !began) return;
    fingers.set(event.pointerId, event.clientX);
    const box = u.over.getBoundingClientRect();
    if (fingers.size === 2) zoom(within(u, pinched(began, [...fingers.values()], box)));
    else if (chart.isZoomed) zoom(within(u, moved(began, event.clientX, box)));
    else u.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
  }

  function ready(u) {
    u.over.addEventListener("pointerdown", down);
    u.over.addEventListener("pointermove", (event) => move(u, event));
    for (const name of ["pointerup", "pointercancel", "pointerleave"]) u.over.addEventListener(name, up);
  }

  return { hooks: { ready } };
}

function within(u, [from, to]) {
  const [t] = u.data;
  const first = Math.min(t[0], u.scales.x.min), last = Math.max(t.at(-1), u.scales.x.max);
  const span = Math.min(Math.max(to - from, LEAST_S), last - first);
  const start = Math.min(Math.max(from, first), last - span);
  return [start, start + span];
}

/** What was under two fingers stays under them. */
export function pinched({ range: [min, max], at }, [left, right], box) {
  const then = at.map((x) => min + ((x - box.left) / box.width) * (max - min));
  const apart = Math.sign(right - left) * Math.max(Math.abs(right - left), 8) || 8;
  const perPixel = Math.abs((then[1] - then[0]) / apart);
  const start = (then[0] + then[1]) / 2 - ((left + right) / 2 - box.left) * perPixel;
  return [start, start + box.width * perPixel];
}

function moved({ range: [min, max], at: [x] }, to, box) {
  const by = ((x - to) / box.width) * (max - min);
  return [min + by, max + by];
}
