// Links that are to be passed on: a click copies them; without a clipboard it follows them.
import { notify } from "./shell.js";

async function copy(event) {
  const link = event.target.closest("a[data-copy]");
  if (!link || !navigator.clipboard) return;
  event.preventDefault();
  try {
    await navigator.clipboard.writeText(link.href);
    notify("Link copied: it shows this moment for good.");
  } catch {
    location.assign(link.href);
  }
}

export function startLinks() {
  document.addEventListener("click", copy);
}
