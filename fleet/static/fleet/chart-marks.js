// Lines across a chart: reference levels, and borders of what its data come from. And the labels of all that is marked in a chart:
// none stands on another.
import { css } from "./palette.js";

const FONT = () => `${11 * devicePixelRatio}px system-ui, sans-serif`;
const UP = 10, DOWN = 4; // pixels that letters take above and below their baseline
const ROW = 14; // pixels from one row of labels to the next
const APART = 4; // pixels between two labels in a row
const INK = { threshold: "--bad", peers: "--ok" };

export function within(u, paint) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = FONT();
  ctx.lineWidth = devicePixelRatio;
  paint(ctx, bbox);
  ctx.restore();
}

export function write(ctx, text, x, y) {
  ctx.setLineDash([]);
  ctx.strokeStyle = css("--panel");
  ctx.lineWidth = 3 * devicePixelRatio;
  ctx.lineJoin = "round";
  ctx.strokeText(text, x, y);
  ctx.fillText(text, x, y);
}

export function line(ctx, ink, dash, from, to) {
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash(dash.map((part) => part * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
}

const taken = new WeakMap(); // the boxes of a plot's labels, since it was last cleared

/** A uPlot plugin: with each drawing all places are free again. */
export const labelsPaint = () => ({ hooks: { drawClear: (u) => taken.set(u, []) } });

/** Keep a place for a label, [left, top, right, bottom]; false where one stands already. */
export function take(u, box) {
  const boxes = taken.get(u) ?? [];
  if (boxes.some(([left, top, right, bottom]) => box[0] < right && left < box[2] && box[1] < bottom && top < box[3])) return false;
  boxes.push(box);
  return true;
}

/** Write a label at the first of some places, [x, baseline, alignment], where it is within the chart and on no other; else nowhere. */
export function label(u, text, places) {
  const { ctx, bbox } = u;
  const px = devicePixelRatio;
  const { width } = ctx.measureText(text);
  return places.some(([x, y, align]) => {
    const left = x - { left: 0, center: width / 2, right: width }[align];
    const isWithin = left >= bbox.left && left + width <= bbox.left + bbox.width && y - UP * px >= bbox.top && y + DOWN * px <= bbox.top + bbox.height;
    if (!isWithin || !take(u, [left - APART * px, y - UP * px, left + width + APART * px, y + DOWN * px])) return false;
    ctx.textAlign = align;
    write(ctx, text, x, y);
    return true;
  });
}

/** Places for a label in rows from the top of a chart, the highest first. */
export const rows = ({ bbox }, x, align, n = 3) => Array.from({ length: n }, (_, i) => [x, bbox.top + (13 + i * ROW) * devicePixelRatio, align]);

/** Places for the label of a level: above its line or below, at the left or the right. */
export function atLevel({ bbox }, y) {
  const px = devicePixelRatio;
  const sides = [[bbox.left + 6 * px, "left"], [bbox.left + bbox.width - 6 * px, "right"]];
  return sides.flatMap(([x, align]) => [[x, y - 5 * px, align], [x, y + ROW * px, align]]);
}

/** Levels: what peers do, what it was before, from where on it counts as broken. */
export function marksPaint({ marks = [] }) {
  const draw = (u) => within(u, (ctx, bbox) => {
    for (const [value, words, kind] of marks) {
      const y = Math.round(u.valToPos(value, "y", true));
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      line(ctx, css(INK[kind] ?? "--muted"), [2, 3], [bbox.left, y], [bbox.left + bbox.width, y]);
      label(u, words, atLevel(u, y));
    }
  });
  return { hooks: marks.length ? { draw } : {} };
}

/** Borders: where another store, or another resolution, tells what came before. */
export function reachPaint({ reach = [] }) {
  const draw = (u) => within(u, (ctx, bbox) => {
    for (const { since } of reach.slice(1)) {
      const x = Math.round(u.valToPos(since, "x", true));
      if (x <= bbox.left || x >= bbox.left + bbox.width) continue;
      line(ctx, css("--muted"), [6, 4], [x, bbox.top], [x, bbox.top + bbox.height]);
    }
  });
  return { hooks: reach.length > 1 ? { draw } : {} };
}

/** The name of the time zone, in the corner below the values: UTC, or the difference from it. */
export function zonePaint(name) {
  const draw = (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.font = FONT();
    ctx.fillStyle = css("--muted");
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.fillText(name().replace(/^UTC(?=.)/, ""), 2 * devicePixelRatio, bbox.top + bbox.height + 5 * devicePixelRatio);
    ctx.restore();
  };
  return { hooks: { draw } };
}
