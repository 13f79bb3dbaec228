// The search field with its suggestions: a combobox, one tab stop. Without scripts it is a form.

let chosen = null; // the address of a suggestion

const links = () => [...document.querySelectorAll("#results a")];

/** Mark the suggestion that Enter opens; none, if there is no such number. */
function choose(field, at) {
  links().forEach((link, i) => link.setAttribute("aria-selected", String(i === at)));
  const link = links()[at];
  chosen = link?.href ?? null;
  if (link) field.setAttribute("aria-activedescendant", link.id);
  else field.removeAttribute("aria-activedescendant");
  link?.scrollIntoView({ block: "nearest" });
}

const chosenAt = () => links().findIndex((link) => link.href === chosen);

function walk(event, field) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by || !links().length) return;
  event.preventDefault();
  choose(field, Math.min(chosenAt() + by, links().length - 1));
}

function open(event) {
  const link = links()[Math.max(chosenAt(), 0)];
  if (!link) return;
  event.preventDefault();
  link.click();
}

/** What the server lists as links become options, which Tab passes over. */
function name(field) {
  const list = document.querySelector("#results ul");
  list?.setAttribute("role", "listbox");
  list?.setAttribute("aria-label", "Suggestions");
  for (const item of list?.children ?? []) item.setAttribute("role", "none");
  links().forEach((link, i) => {
    Object.assign(link, { id: `result-${i}`, tabIndex: -1 });
    link.setAttribute("role", "option");
  });
  choose(field, chosenAt());
  tell(field);
}

function tell(field) {
  field.setAttribute("aria-expanded", String(links().length > 0 && document.activeElement === field));
}

export function startSearch() {
  const form = document.querySelector(".search");
  const field = form?.querySelector("input");
  if (!field) return;
  const names = { role: "combobox", "aria-autocomplete": "list", "aria-controls": "results", "aria-expanded": "false" };
  for (const [attribute, value] of Object.entries(names)) field.setAttribute(attribute, value);
  form.addEventListener("htmx:afterSwap", () => name(field));
  form.addEventListener("keydown", (event) => walk(event, field));
  form.addEventListener("submit", open);
  field.addEventListener("focus", () => tell(field));
  field.addEventListener("blur", () => {
    choose(field, -1);
    tell(field);
  });
}
