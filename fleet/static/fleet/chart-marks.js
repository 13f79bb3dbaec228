// Lines across a chart: reference levels, and borders of what its data come from.
import { css } from "./palette.js";

const FONT = () => `${11 * devicePixelRatio}px system-ui, sans-serif`;
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
