// The palette: one dialog that finds everything, a combobox with one tab stop. Without scripts the link leads to a page.
import { say } from "./shell.js";

let chosen = null; // the address of a result
let isOld = true; // the results are of an earlier text
let opensNext = false; // Enter was pressed before the results came

const dialog = () => document.getElementById("palette");
const links = () => [...document.querySelectorAll("#results a")];
const chosenAt = () => links().findIndex((link) => link.href === chosen);

/** Mark the result that Enter opens; none, if there is no such number. */
function choose(field, at) {
  links().forEach((link, i) => link.setAttribute("aria-selected", String(i === at)));
  const link = links()[at];
  chosen = link?.href ?? null;
  if (link) field.setAttribute("aria-activedescendant", link.id);
  else field.removeAttribute("aria-activedescendant");
  link?.scrollIntoView({ block: "nearest" });
}

function walk(event, field) {
  const n = links().length;
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by || !n) return;
  event.preventDefault();
  choose(field, (chosenAt() + by + n) % n);
}

function open(event) {
  event.preventDefault();
  opensNext = isOld;
  if (!isOld) links()[Math.max(chosenAt(), 0)]?.click();
}

/** What the server lists as links become options in groups, which Tab passes over. */
function name(field) {
  document.querySelectorAll("#results .hits").forEach((group) => {
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", group.querySelector("h2").textContent);
    for (const part of group.querySelectorAll("h2, ul, li")) part.setAttribute("role", "presentation");
  });
  links().forEach((link, i) => {
    Object.assign(link, { id: `result-${i}`, tabIndex: -1 });
    link.setAttribute("role", "option");
  });
  isOld = false;
  const n = links().length;
  field.setAttribute("aria-expanded", String(n > 0));
  choose(field, n ? 0 : -1);
  say(`${n} result${n === 1 ? "" : "s"}`);
  if (opensNext) links()[0]?.click();
  opensNext = false;
}

export function openPalette() {
  if (document.querySelector("dialog[open]")) return;
  dialog().showModal();
  const field = document.getElementById("search");
  field.select();
  htmx.trigger(field, "open");
}

export function startSearch() {
  const form = dialog()?.querySelector("form");
  const field = form?.querySelector("input");
  if (!field) return;
  form.addEventListener("htmx:afterSwap", () => name(field));
  form.addEventListener("keydown", (event) => walk(event, field));
  form.addEventListener("submit", open);
  field.addEventListener("input", () => { isOld = true; });
  // A click beside the dialog closes it, as does a link to a place on this page.
  dialog().addEventListener("click", ({ target }) => (target === dialog() || target.closest("#results a")) && dialog().close());
  document.querySelector("a.find")?.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openPalette();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "k" || event.altKey || event.shiftKey || event.ctrlKey === event.metaKey) return;
    event.preventDefault();
    if (dialog().open) dialog().close();
    else openPalette();
  });
}
