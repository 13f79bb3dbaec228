// The frame of every page: theme, toasts and screen reader announcements.
import { recall, remember } from "./store.js";

const CHOICES = ["system", "light", "dark"];
const listeners = new Set();

/** Call back whenever the colours have changed, after the page shows them. */
export const onTheme = (listener) => listeners.add(listener);
const announce = () => requestAnimationFrame(() => setTimeout(() => listeners.forEach((listener) => listener())));

function applyTheme(choice) {
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  const button = document.getElementById("theme");
  if (!button) return;
  button.dataset.themeChoice = choice;
  button.setAttribute("aria-label", `Theme: ${choice}`);
  button.title = `Theme: ${choice}`;
}

function startTheme() {
  let choice = recall("theme", "system");
  applyTheme(choice);
  document.getElementById("theme")?.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    remember("theme", choice);
    applyTheme(choice);
    announce();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
}

/** Show a notice for a while; errors stay longer. */
export function notify(text, { error = false } = {}) {
  const toasts = document.getElementById("toasts");
  const toast = document.createElement("div");
  toast.className = error ? "toast error" : "toast";
  toast.textContent = text;
  toasts.append(toast);
  setTimeout(() => toast.remove(), error ? 10000 : 5000);
}

/** Say something to screen readers, politely. */
export function say(text) {
  document.getElementById("spoken").textContent = text;
}

const REFUSALS = {
  401: "Sign in to do this.",
  403: "This needs the role operator.",
  404: "This item no longer exists.",
  409: "Changed by another user in the meantime. Reload the page.",
  429: "Too many requests. Try again in a moment.",
};

function startNotices() {
  document.body.addEventListener("htmx:responseError", ({ detail }) => {
    const { status } = detail.xhr;
    notify(REFUSALS[status] ?? `The server returned an error (${status}). Try again.`, { error: true });
  });
  document.body.addEventListener("htmx:sendError", () => notify("The server is not reachable. No changes were made.", { error: true }));
  document.body.addEventListener("htmx:timeout", () => notify("The server took too long. Check whether the change was made.", { error: true }));
}

function startMenu() {
  const more = document.getElementById("more");
  const top = more?.closest(".top");
  const set = (open) => {
    top.classList.toggle("menu-open", open);
    more.setAttribute("aria-expanded", String(open));
  };
  more?.addEventListener("click", () => set(!top.classList.contains("menu-open")));
  document.addEventListener("click", ({ target }) => !target.closest("#menu, #more") && more && set(false));
}

// The menu of further pages closes as menus do; without scripts it opens and closes by itself.
function startPages() {
  const pages = document.getElementById("pages-more");
  if (!pages) return;
  document.addEventListener("click", ({ target }) => { if (!pages.contains(target) || target.closest("#pages-more div")) pages.open = false; });
  pages.addEventListener("focusout", ({ relatedTarget }) => { if (relatedTarget && !pages.contains(relatedTarget)) pages.open = false; });
  pages.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !pages.open) return;
    pages.open = false;
    pages.querySelector("summary").focus();
    event.stopPropagation();
  });
}

/** Open the panel that a link of the page leads to, or into, if it is folded. */
function unfold(target) {
  target?.closest(".panel")?.querySelector(":scope > header > .fold")?.setAttribute("aria-expanded", "true");
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
}

// Panels that are folded on a narrow screen, and links to them.
function startFolds() {
  document.addEventListener("click", ({ target }) => {
    const fold = target.closest(".fold");
    fold?.setAttribute("aria-expanded", String(fold.getAttribute("aria-expanded") === "false"));
    const link = target.closest('a[href^="#"]');
    if (link?.hash.length > 1) unfold(document.getElementById(link.hash.slice(1)));
  });
  // A wide screen has room for them.
  if (matchMedia("(min-width: 1800px)").matches) for (const fold of document.querySelectorAll(".fold-panel:not(#evidence)")) fold.open = true;
  if (location.hash.length > 1) unfold(document.getElementById(location.hash.slice(1)));
}

export function startShell() {
  startFolds();
  startPages();
  startTheme();
  startMenu();
  startNotices();
}
