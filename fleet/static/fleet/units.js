// Number formatting, same as fleet/formatting.py: a missing value is a dash, never zero.

const NBSP = "\u202f";
export const ABSENT = "–";
const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

function digits(value, n = 3) {
  if (value === 0) return "0";
  const decimals = Math.min(Math.max(n - 1 - Math.floor(Math.log10(Math.abs(Number(value.toPrecision(n))))), 0), 6);
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function scaled(value, unit) {
  const [size, prefix] = PREFIXES.find(([size]) => Math.abs(value) >= size * 0.9995) ?? [1, ""];
  return `${digits(value / size)}${NBSP}${prefix}${unit}`.replace(/\u202f$/, "");
}

function seconds(value) {
  const size = Math.abs(value);
  if (value === 0 || size >= 0.9995) return `${digits(value)}${NBSP}s`;
  return size >= 0.9995e-3 ? `${digits(value * 1e3)}${NBSP}ms` : `${digits(value * 1e6)}${NBSP}µs`;
}

function dollars(size) {
  return size >= 100 ? Math.round(size).toLocaleString("en") : size.toFixed(size >= 0.0995 || !size ? 2 : 3);
}

const WRITERS = {
  ratio: (value) => `${(value * 100).toFixed(1)}${NBSP}%`,
  s: seconds,
  bytes: (value) => scaled(value, "B"),
  bytes_per_s: (value) => scaled(value, "B/s"),
  flops_per_s: (value) => scaled(value, "FLOP/s"),
  per_s: (value) => scaled(value, "/s"),
  usd: (value) => `${value < 0 ? "\u2212" : ""}$${dollars(Math.abs(value))}`,
  count: (value) => scaled(value, ""),
};

/** Write a value in its unit. */
export function figure(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return ABSENT;
  return (WRITERS[unit] ?? WRITERS.count)(value);
}

/** Write the labels of an axis: short, and all with the same prefix and decimals. */
export function ticks(values, unit) {
  const shown = values.filter((value) => value !== null && value !== undefined);
  const top = Math.max(...shown.map(Math.abs), 0);
  const [size, suffix] = axisUnit(top, unit);
  const step = shown.length > 1 ? Math.abs(shown[1] - shown[0]) / size : top / size;
  const enough = [0, 1, 2, 3, 4].find((n) => Math.abs(step * 10 ** n - Math.round(step * 10 ** n)) < 1e-6) ?? 4;
  const decimals = unit === "usd" && enough === 1 ? 2 : enough;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    if (value === 0) return "0";
    const text = (value / size).toFixed(decimals);
    return unit === "usd" ? `$${text}` : `${text}${NBSP}${suffix}`.replace(/\u202f$/, "");
  });
}

/** Write the labels of a logarithmic axis, each in the prefix that suits it. */
export function logTicks(values, unit) {
  return values.map((value) => (value === null || value === undefined ? null : figure(value, unit).replace(/\.0+(?=\u202f|$)/, "")));
}

function axisUnit(top, unit) {
  if (unit === "ratio") return [0.01, "%"];
  if (unit === "usd") return [1, ""];
  if (unit === "s") return top >= 1 || top === 0 ? [1, "s"] : top >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  const tail = { bytes: "B", bytes_per_s: "B/s", flops_per_s: "FLOP/s", per_s: "/s" }[unit] ?? "";
  const [size, prefix] = PREFIXES.find(([size]) => top >= size) ?? [1, ""];
  return [size, `${prefix}${tail}`];
}
