// Links to share: a click copies them, or follows them where there is no clipboard.
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

export function startLinks() {
  document.addEventListener("click", copy);
}
