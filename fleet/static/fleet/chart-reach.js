// The note under a chart on the resolution and the store of each part of the data.
import { moment } from "./time.js";

const AFAR = ", from the long-term store";

// The newest part needs no date: it goes up to now. Each older one ends where the next begins.
function reachText(reach, i) {
  const { detail, tier, why } = reach[i];
  const next = reach[i + 1];
  const before = next ? ` before ${moment(next.since * 1000, "day")}` : "";
  const span = document.createElement("span");
  span.textContent = why ? `nothing${before}: ${why}` : `${detail}${before}${tier === "long term" ? AFAR : ""}`;
  if (why) span.className = "warn";
  return span;
}

/** Write the note, the newest part first; hidden where one store has all data in full detail. */
export function reachOf({ data, reach }) {
  const parts = (data?.reach ?? []).map((_, i, all) => reachText(all, i)).reverse();
  reach.replaceChildren(...parts);
  reach.hidden = !parts.length;
}
