// Annotations in a chart: reference levels and events.
import { css } from "./palette.js";

const FONT = () => `${11 * devicePixelRatio}px system-ui, sans-serif`;
const LONGEST = 30;
const ROOM = 320; // narrower charts show their lines only
const INK = { threshold: "--bad", peers: "--ok" };

function within(u, paint) {
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

function write(ctx, text, x, y) {
  ctx.setLineDash([]);
  ctx.strokeStyle = css("--panel");
  ctx.lineWidth = 3 * devicePixelRatio;
  ctx.lineJoin = "round";
  ctx.strokeText(text, x, y);
  ctx.fillText(text, x, y);
}

function line(ctx, ink, dash, from, to) {
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash(dash.map((part) => part * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
}

/** Levels: what peers do, what it was before, from where on it counts as broken. */
export function marksPaint({ marks = [] }) {
  const draw = (u) => within(u, (ctx, bbox) => {
    for (const [value, words, kind] of marks) {
      const y = Math.round(u.valToPos(value, "y", true));
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      line(ctx, css(INK[kind] ?? "--muted"), [2, 3], [bbox.left, y], [bbox.left + bbox.width, y]);
      ctx.textAlign = "left";
      const above = y - bbox.top > 18 * devicePixelRatio;
      write(ctx, words, bbox.left + 6 * devicePixelRatio, y + (above ? -5 : 14) * devicePixelRatio);
    }
  });
  return { hooks: marks.length ? { draw } : {} };
}

const shortened = (words) => words.length > LONGEST ? `${words.slice(0, LONGEST - 1)}…` : words;

/** Moments: a dotted line each, and its words where they do not run into the next. */
export function eventsPaint({ events = [], shade = [] }) {
  const draw = (u) => within(u, (ctx, bbox) => {
    // Below the label of a shaded stretch.
    const baseline = bbox.top + (shade?.length ? 27 : 13) * devicePixelRatio;
    const hasRoom = bbox.width > ROOM * devicePixelRatio;
    let clear = -Infinity;
    for (const [second, words] of events) {
      const x = Math.round(u.valToPos(second, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      line(ctx, css("--ack"), [1, 3], [x, bbox.top], [x, bbox.top + bbox.height]);
      const text = shortened(words);
      const width = ctx.measureText(text).width + 8 * devicePixelRatio;
      const isAtLeft = x + width > bbox.left + bbox.width;
      const from = isAtLeft ? x - width : x;
      if (!hasRoom || from < clear) continue;
      ctx.textAlign = isAtLeft ? "right" : "left";
      write(ctx, text, x + (isAtLeft ? -4 : 4) * devicePixelRatio, baseline);
      clear = from + width;
    }
  });
  return { hooks: events.length ? { draw } : {} };
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
