// Links to share: a click copies them, or follows them where there is no clipboard. Links of a page
// of a past time: they lead to that time, unless they are marked data-now.
import { notify } from "./shell.js";

async function copy(event) {
  const link = event.target.closest("a[data-copy]");
  if (!link || !navigator.clipboard) return;
  event.preventDefault();
  try {
    await navigator.clipboard.writeText(link.href);
    notify("Link copied. It always shows this time.");
  } catch {
    location.assign(link.href);
  }
}

const PAGES = /^\/($|nodes\/|runs\/|alerts\/)/;
const TIMES = ["at", "from", "to", "window"];

/** The address of a page of this site at the time that this page shows. */
export function atThisTime(href) {
  const { at } = document.getElementById("main").dataset;
  const to = new URL(href, location.href);
  if (!at || to.origin !== location.origin || !PAGES.test(to.pathname) || TIMES.some((name) => to.searchParams.has(name))) return href;
  to.searchParams.set("at", at);
  return to.href;
}

function keepTime({ target }) {
  const link = target.closest?.("a[href]");
  if (!link || link.matches("[data-now], [href^='#']")) return;
  const to = atThisTime(link.href);
  // What is left alone keeps its address as it was written.
  if (to !== link.href) link.href = to;
}

export function startLinks() {
  for (const reached of ["pointerover", "focusin", "click"]) document.addEventListener(reached, keepTime, true);
  document.addEventListener("click", copy);
}
