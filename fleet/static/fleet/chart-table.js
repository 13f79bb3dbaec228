// The data of a chart as a table, for screen readers and for exact values.
import { said } from "./chart-events.js";
import { moment, tenths, zoneName } from "./time.js";
import { figure } from "./units.js";

const MOST_ROWS = 240;

function cell(tag, text, isNumber) {
  const element = Object.assign(document.createElement(tag), { textContent: text });
  if (isNumber) element.className = "num";
  return element;
}

function row(tag, texts) {
  const tr = document.createElement("tr");
  tr.append(...texts.map((text, i) => cell(tag, text, i > 0)));
  return tr;
}

function columns({ kind, data }) {
  if (kind === "heat") return data.rows.map((label, i) => ({ label, values: data.values[i] }));
  return data.series;
}

function build(chart) {
  const { data } = chart;
  const isBars = Boolean(data.labels);
  const rows = isBars ? data.labels : data.t;
  const by = Math.max(1, Math.ceil(rows.length / MOST_ROWS));
  const table = document.createElement("table");
  const head = document.createElement("thead");
  head.append(row("th", [isBars ? "" : zoneName(), ...columns(chart).map(({ label }) => label)]));
  const body = document.createElement("tbody");
  for (let i = rows.length - 1; i >= 0; i -= by) {
    const first = isBars ? rows[i] : data.every_s < 1 ? tenths(rows[i] * 1000) : moment(rows[i] * 1000, "full");
    body.append(row("td", [first, ...columns(chart).map(({ values }) => figure(values[i], data.unit ?? "ratio"))]));
  }
  table.append(head, isBars ? reversed(body) : body);
  return table;
}

function reversed(body) {
  body.replaceChildren(...[...body.children].reverse());
  return body;
}

// The markers of a chart as a list, with links to what they are about.
function events({ data, isTimed }) {
  const list = Object.assign(document.createElement("ul"), { className: "timeline" });
  list.append(...(data.events ?? []).map((event) => {
    const [[words, time]] = said({ events: [event] }, isTimed);
    const text = Object.assign(document.createElement(event[4] ? "a" : "span"), { textContent: words });
    if (event[4]) text.href = event[4];
    const item = document.createElement("li");
    item.append(Object.assign(document.createElement("span"), { className: "muted", textContent: time }), text);
    return item;
  }));
  return list.children.length ? [list] : [];
}

/** Give a chart its table, filled when it is opened. */
export function tableOf(chart) {
  const details = document.createElement("details");
  const scroll = Object.assign(document.createElement("div"), { className: "scroll chart-table", tabIndex: 0 });
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Chart data");
  details.append(Object.assign(document.createElement("summary"), { textContent: "Table" }), scroll);
  const refresh = () => {
    if (details.open) scroll.replaceChildren(...(chart.drawing && chart.plot ? [...events(chart), build(chart)] : ["No data in this time range."]));
  };
  details.addEventListener("toggle", refresh);
  chart.figure.append(details);
  return { refresh };
}
