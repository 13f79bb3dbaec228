// Markers in a chart: alerts, drills, checkpoints, deploys, compiles. Those that stand close are drawn as one.
import { label, line, rows, take, within, write } from "./chart-marks.js";
import { css } from "./palette.js";
import { showsMarkers } from "./range.js";
import { moment } from "./time.js";

// The most important first: of several that stand close, its glyph is drawn.
const KINDS = {
  alert: ["\u25b2", "--bad"], fired: ["\u25b2", "--bad"], drill: ["\u25c7", "--ack"], onset: ["\u25b9", "--bad"], resolved: ["\u2713", "--ok"], compile: ["\u25d0", "--warn"],
  deploy: ["\u25c6", "--link"], restart: ["\u21bb", "--warn"], scale: ["\u00b1", "--muted"], checkpoint: ["\u25a0", "--checkpoint"], note: ["\u25cf", "--muted"],
};
const ORDER = Object.keys(KINDS);
const NEAR = 13; // pixels: closer markers are one
const GLYPH = 4; // pixels from the middle of a marker to its edge
const COUNT = 16; // pixels of the number beside a marker that is several
const LONGEST = 30;
const ROOM = 320; // narrower charts have no words
const MOST = 5;

const glyphOf = (kind) => (KINDS[kind] ?? KINDS.note)[0];
const rank = ([, , kind]) => (ORDER.indexOf(kind) + 1) || ORDER.length + 1;
const shortened = (words) => words.length > LONGEST ? `${words.slice(0, LONGEST - 1)}\u2026` : words;

/** The markers of a chart, in groups of those that stand close: their place in pixels, and which. */
export function groups(u, events = []) {
  const found = [];
  if (!showsMarkers()) return found;
  const { min, max } = u.scales.x;
  for (const event of events.filter(([second]) => second >= min && second <= max)) {
    const x = u.valToPos(event[0], "x");
    const last = found.at(-1);
    if (last && x - last.x < NEAR + (last.events.length > 1 ? COUNT : 0)) last.events.push(event);
    else found.push({ x, events: [event] });
  }
  for (const group of found) group.lead = [...group.events].sort((a, b) => rank(a) - rank(b))[0];
  return found;
}

/** The group of markers at a place in pixels. */
export const groupAt = (u, events, x) => groups(u, events).find((group) => Math.abs(group.x - x) <= NEAR / 2 + 2);

/** What a group says: for each marker its glyph, its words and its time. */
export function said({ events }, isTimed = true) {
  const rows = events.slice(0, MOST).map(([second, words, kind, until]) => {
    const to = until ? ` to ${moment(until * 1000, "clock")}` : "";
    return [`${glyphOf(kind)} ${words}`, isTimed ? `${moment(second * 1000, "clock")}${to}` : ""];
  });
  return events.length > MOST ? [...rows, [`and ${events.length - MOST} more`, ""]] : rows;
}

/** A uPlot plugin: a dotted line each, a glyph at its top, and words where there is room. */
export function eventsPaint({ events = [], shade = [] }) {
  const draw = (u) => within(u, (ctx, bbox) => {
    const px = devicePixelRatio;
    // Below the label of a shaded stretch.
    const row = shade?.length ? 1 : 0;
    const drawn = groups(u, events).map(({ x: place, lead, events: { length } }) => {
      const x = bbox.left + Math.round(place * px);
      const [glyph, ink] = KINDS[lead[2]] ?? KINDS.note;
      const at = (align, dx = 0) => rows(u, x + dx * px, align).slice(row, row + 1);
      line(ctx, css(ink), [1, 3], [x, at("center")[0][1] + 4 * px], [x, bbox.top + bbox.height]);
      const [[, y]] = at("center");
      ctx.textAlign = "center";
      take(u, [x - GLYPH * px, y - 10 * px, x + GLYPH * px, y + 4 * px]);
      write(ctx, glyph, x, y);
      return [at, ink, length > 1 ? [`${length}`] : [...(bbox.width > ROOM * px ? [shortened(lead[1])] : []), lead[2]]];
    });
    // Words only where all glyphs leave room for them: all of them, else the kind, as a glyph alone says little.
    for (const [at, ink, texts] of drawn) {
      ctx.fillStyle = css(ink);
      texts.some((text) => label(u, text, [...at("left", 9), ...at("right", -9)]));
    }
  });
  return { hooks: events.length ? { draw } : {} };
}
