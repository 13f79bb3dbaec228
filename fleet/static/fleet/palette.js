// Colours from the style sheet, so that charts follow the theme.

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

/** A function from a strength to red, green, blue and opacity, in the current theme: 0 is calm, 1 far above its peers, -1 far below, null unknown and clear. */
export function heatInks() {
  const [calm, high, low] = ["--heat-calm", "--heat-high", "--heat-low"].map((name) => [1, 3, 5].map((at) => Number.parseInt(css(name).slice(at, at + 2), 16)));
  return (at) => {
    if (at === null) return [0, 0, 0, 0];
    const ink = at < 0 ? low : high;
    return [...calm.map((from, i) => Math.round(from + (ink[i] - from) * Math.abs(at))), 255];
  };
}

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
