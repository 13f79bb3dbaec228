// Custom painting on a chart's canvas: limits, shaded ranges, stacked bars, heat map.
import { atLevel, label, line, rows, within, write } from "./chart-marks.js";
import { colour, css, faded, hatch, heatInks, SHAPES } from "./palette.js";
import { figure } from "./units.js";

const font = () => `${11 * devicePixelRatio}px system-ui, sans-serif`;

/** The threshold: a dashed line that says what it is. */
export function limitPaint({ limit, unit }) {
  const draw = (u) => within(u, (ctx, bbox) => {
    const y = Math.round(u.valToPos(limit, "y", true));
    line(ctx, css("--bad"), [4, 3], [bbox.left, y], [bbox.left + bbox.width, y]);
    label(u, `limit ${figure(limit, unit).replace(".0", "")}`, atLevel(u, y));
  });
  return { hooks: limit === null || limit === undefined ? {} : { draw } };
}

/** Stretches of time that mattered, tinted and named. */
export function shadePaint({ shade = [] }) {
  const each = (u, paint) => within(u, (ctx, bbox) => {
    for (const [from, to, label] of shade) {
      const left = Math.max(u.valToPos(from, "x", true), bbox.left);
      const right = Math.min(to === null ? Infinity : u.valToPos(to, "x", true), bbox.left + bbox.width);
      if (right > left) paint(ctx, bbox, left, right, label);
    }
  });
  const drawClear = (u) => each(u, (ctx, bbox, left, right) => {
    ctx.fillStyle = faded(css("--bad"), 0.1);
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.fillStyle = css("--bad");
    ctx.fillRect(left, bbox.top, devicePixelRatio, bbox.height);
  });
  const draw = (u) => each(u, (ctx, bbox, left, right, words) => {
    ctx.fillStyle = css("--bad");
    const isTight = right - left < ctx.measureText(words).width + 8 * devicePixelRatio;
    const within = rows(u, left + 5 * devicePixelRatio, "left");
    const before = rows(u, left - 4 * devicePixelRatio, "right");
    label(u, words, isTight && right > bbox.left + bbox.width * 0.7 ? [...before, ...within] : [...within, ...before]);
  });
  return { hooks: shade.length ? { drawClear, draw } : {} };
}

const APART = 90; // pixels between two shapes of a line

/** Shapes along several lines, so that colour alone does not tell them apart. */
export function shapesPaint({ t, series }) {
  const several = series.map((one, i) => [one, i]).filter(([{ role }]) => !role);
  const draw = (u) => within(u, (ctx) => {
    ctx.textAlign = "center";
    several.forEach(([{ values }, i], nth) => {
      ctx.fillStyle = colour(null, nth);
      // The shapes of the lines do not stand above each other.
      let clear = u.bbox.left + ((nth * APART) / several.length) * devicePixelRatio;
      values.forEach((value, k) => {
        const x = u.valToPos(t[k], "x", true);
        if (value === null || x < clear) return;
        write(ctx, SHAPES[nth % SHAPES.length], x, u.valToPos(u.data[i + 1][k], "y", true) + 4 * devicePixelRatio);
        clear = x + APART * devicePixelRatio;
      });
    });
  });
  return { hooks: several.length > 1 ? { draw } : {} };
}

function fillOf(ctx, role, i) {
  const ink = colour(role, i);
  return role === "wait" ? hatch(ctx, ink, faded(css("--panel"), 0.5)) : ink;
}

/** Steps as bars as wide as they lasted, each a stack of phases. */
export function stackPaint({ t, series }, usual) {
  const draw = (u) => within(u, (ctx) => {
    const floor = t.map(() => 0);
    const edges = t.map((_, i) => edgesOf(u, { t, series }, usual, i));
    series.forEach(({ role, values }, k) => {
      const path = new Path2D();
      values.forEach((value, i) => {
        if (!value) return;
        const [left, right] = edges[i];
        const gap = right - left > 5 * devicePixelRatio ? devicePixelRatio : 0;
        const bottom = u.valToPos(floor[i], "y", true);
        const top = u.valToPos(floor[i] + value, "y", true);
        path.rect(left, top, Math.max(right - left - gap, 0.5), bottom - top);
        floor[i] += value;
      });
      ctx.fillStyle = fillOf(ctx, role, k);
      ctx.fill(path);
    });
  });
  return { hooks: { draw } };
}

const lasted = (series, i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0);

// Where the bar of a step begins and ends.
function edgesOf(u, { t, series }, usual, i) {
  const total = lasted(series, i);
  const isNext = i && t[i] - t[i - 1] <= Math.max(2.5 * usual, 1.5 * total);
  const since = isNext ? t[i - 1] : t[i] - Math.max(usual, total);
  return [u.valToPos(since, "x", true), u.valToPos(t[i], "x", true)];
}

/** A step that is taller than the chart says how tall. */
export function cutPaint(data, usual) {
  const draw = (u) => within(u, (ctx) => {
    ctx.fillStyle = css("--text");
    data.t.forEach((_, i) => {
      const total = lasted(data.series, i);
      if (total <= u.scales.y.max) return;
      const [left, right] = edgesOf(u, data, usual, i);
      label(u, `↑ ${figure(total, "s")}`, rows(u, (left + right) / 2, "center"));
    });
  });
  return { hooks: { draw } };
}

/** One bar per label, its parts on top of each other, its sum above where there is room; the culprit stands out. */
export function barPaint({ labels, series, unit, culprit }) {
  const draw = (u) => within(u, (ctx, bbox) => {
    const width = (bbox.width / labels.length) * 0.74;
    const floor = labels.map(() => 0);
    series.forEach(({ role, values }, k) => {
      ctx.fillStyle = fillOf(ctx, role, k);
      values.forEach((value, i) => {
        if (!value) return;
        const bottom = u.valToPos(floor[i], "y", true);
        const top = u.valToPos(floor[i] + value, "y", true);
        ctx.globalAlpha = culprit && i !== culprit[0] ? 0.5 : 1;
        ctx.fillRect(u.valToPos(i, "x", true) - width / 2, top, width, bottom - top);
        floor[i] += value;
      });
    });
    ctx.globalAlpha = 1;
    sums(u, ctx, floor, width, unit);
    if (culprit) mark(u, ctx, bbox, floor[culprit[0]], culprit);
  });
  return { hooks: { draw } };
}

// Words above the bar of a culprit, which may be the shortest, and a line down to it: a band would look like the tallest bar.
function mark(u, ctx, bbox, total, [place, words]) {
  const x = u.valToPos(place, "x", true);
  const px = devicePixelRatio;
  line(ctx, css("--bad"), [2, 3], [x, bbox.top + 20 * px], [x, Math.max(u.valToPos(total, "y", true) - 18 * px, bbox.top + 20 * px)]);
  ctx.font = `600 ${font()}`;
  const half = ctx.measureText(words).width / 2 + 4 * px;
  ctx.textAlign = "center";
  write(ctx, words, Math.min(Math.max(x, bbox.left + half), bbox.left + bbox.width - half), bbox.top + 16 * px);
}

function sums(u, ctx, totals, width, unit) {
  const texts = totals.map((total) => figure(total, unit));
  if (Math.max(...texts.map((text) => ctx.measureText(text).width)) > width * 1.25) return;
  ctx.textAlign = "center";
  ctx.fillStyle = css("--muted");
  totals.forEach((total, i) => write(ctx, texts[i], u.valToPos(i, "x", true), u.valToPos(total, "y", true) - 4 * devicePixelRatio));
}

/** A picture of one pixel per row, in ``order``, and moment, stretched over the plot; ``inks`` says how strong each is. */
export function heatPaint({ t, rows, every_s: everyS = 1 }, inks, order) {
  const picture = document.createElement("canvas");
  let seen = null;
  // Columns come and go while the chart is followed; between them the picture stands.
  const renew = () => {
    if (seen === t.at(-1)) return;
    seen = t.at(-1);
    picture.width = t.length;
    picture.height = rows.length;
    const context = picture.getContext("2d");
    const image = context.createImageData(t.length, rows.length);
    const inkOf = heatInks();
    order.forEach((row, y) => t.forEach((_, x) => image.data.set(inkOf(inks(row, x)), (y * t.length + x) * 4)));
    context.putImageData(image, 0, 0);
  };
  const drawAxes = (u) => within(u, (ctx, bbox) => {
    renew();
    const left = u.valToPos(t[0] - everyS / 2, "x", true);
    const right = u.valToPos(t.at(-1) + everyS / 2, "x", true);
    ctx.fillStyle = hatch(ctx, css("--panel"), css("--line"));
    ctx.fillRect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(picture, left, bbox.top, right - left, bbox.height);
  });
  return { hooks: { draw: drawAxes } };
}
