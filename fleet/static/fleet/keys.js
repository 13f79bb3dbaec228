// Keyboard shortcuts as listed in the help; inactive while typing in a field.
import { frozenLink } from "./charts.js";
import { togglePause } from "./live.js";
import { pressStep } from "./range.js";
import { openPalette } from "./search.js";
import { notify } from "./shell.js";

const PAGES = { f: "fleet", n: "nodes", r: "runs", a: "alerts", s: "silences", h: "hand-over", d: "drills", m: "notifications", p: "preflight", t: "trials", c: "compiles", b: "budgets" };
const ITEMS = "main [data-href], main tbody tr[id]";
let goingSince = 0;

const typing = (target) => target.closest("input, textarea, select, [contenteditable]");
const dialog = () => document.getElementById("keys");

function go(key) {
  document.querySelector(`.nav a[data-page="${PAGES[key]}"]`)?.click();
}

const items = () => [...document.querySelectorAll(ITEMS)].filter((item) => item.offsetParent);

function select(by) {
  const all = items();
  if (!all.length) return;
  const at = all.findIndex((item) => item.classList.contains("selected"));
  all[at]?.classList.remove("selected");
  const item = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  item.classList.add("selected");
  item.scrollIntoView({ block: "nearest" });
  item.querySelector("a")?.focus({ preventScroll: true });
}

/** Press and return the button of a key: the chosen item's, or the page's only one. */
function press(key) {
  const chosen = document.querySelector(`main .selected [data-key="${key}"]`);
  const all = [...document.querySelectorAll(`[data-key="${key}"]`)].filter((button) => button.offsetParent);
  const button = chosen ?? (all.length === 1 ? all[0] : null);
  button?.click();
  if (!button && all.length) notify(`${all.length} items: select one with j and k first.`);
  return button;
}

async function freeze() {
  const link = frozenLink();
  try {
    await navigator.clipboard.writeText(link);
    notify("Link copied. It always shows this time range.");
  } catch {
    location.assign(link);
  }
}

const ACTIONS = {
  "?": () => dialog().showModal(),
  "/": openPalette,
  g: () => { goingSince = Date.now(); },
  j: () => select(1),
  k: () => select(-1),
  t: freeze,
  p: togglePause,
  "[": () => pressStep(-1),
  "]": () => pressStep(1),
};

function act(event) {
  // On some keyboards brackets need AltGr.
  const isCommand = (event.ctrlKey || event.metaKey || event.altKey) && !event.getModifierState("AltGraph");
  if (isCommand || event.defaultPrevented) return;
  // A dialog closes by itself.
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") return leave(event);
  if (typing(event.target)) return;
  if (event.key in PAGES && Date.now() - goingSince < 1500) go(event.key);
  else if (event.key in ACTIONS) ACTIONS[event.key]();
  // A field that the button focuses must not get the letter.
  else if (!/^[a-z]$/.test(event.key) || !press(event.key)) return;
  if (event.key !== "g") goingSince = 0;
  event.preventDefault();
}

function leave(event) {
  if (typing(event.target)) event.target.blur();
  document.dispatchEvent(new CustomEvent("charts:reset"));
}

export function startKeys() {
  document.addEventListener("keydown", act);
  for (const button of document.querySelectorAll("[data-opens]")) button.addEventListener("click", () => document.getElementById(button.dataset.opens).showModal());
  for (const close of document.querySelectorAll("[data-close]")) close.addEventListener("click", () => close.closest("dialog").close());
  // A row is as good as its link.
  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button, summary, input, form")) row.querySelector("a").click();
  });
}
