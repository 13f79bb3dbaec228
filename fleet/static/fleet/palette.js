// Colours from the style sheet, so that charts follow the theme; cividis for heat maps.

const SERIES = 8;
// Series differ by shape too; nine, so that shape and colour together repeat late.
export const SHAPES = [..."\u25cf\u25a0\u25b2\u25c6\u25bc\u271a\u2605\u2716\u25d7"];

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The colour of a series: by its meaning where it has one, else by its place. */
export function colour(role, index) {
  if (role === "muted") return css("--muted");
  if (role) return css(`--${role}`) || css("--series-1");
  return css(`--series-${(index % SERIES) + 1}`);
}

/** A colour of the style sheet (#rrggbb) let through by so much. */
export function faded(hex, alpha) {
  return `${hex}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;
}

// Five stops of cividis, which reads the same to colour-blind and other eyes.
const STOPS = [[0, 32, 77], [57, 72, 107], [124, 123, 120], [188, 175, 111], [255, 234, 70]];

function between(ratio) {
  const x = Math.min(0.99999, Math.max(0, ratio)) * (STOPS.length - 1);
  const i = Math.floor(x);
  return STOPS[i].map((a, k) => Math.round(a + (STOPS[i + 1][k] - a) * (x - i)));
}

/** 256 colours for one byte; the last is no data and stays clear. */
export const CIVIDIS = Array.from({ length: 256 }, (_, i) => (i === 255 ? [0, 0, 0, 0] : [...between(i / 254), 255]));

/** A pattern of slanted lines on a colour: waiting must not be shown by colour alone. */
export function hatch(context, ground, line) {
  const size = 6;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const draw = tile.getContext("2d");
  draw.fillStyle = ground;
  draw.fillRect(0, 0, size, size);
  draw.strokeStyle = line;
  draw.lineWidth = 1.6;
  draw.beginPath();
  for (const shift of [-size, 0, size]) {
    draw.moveTo(shift, size);
    draw.lineTo(shift + size, 0);
  }
  draw.stroke();
  return context.createPattern(tile, "repeat");
}
