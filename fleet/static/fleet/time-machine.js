// The slider of the overview: what it names while it moves, and the page of that time.
import { moment, now } from "./time.js";

const MOVING = "trnwatch-time-machine";
const form = () => document.getElementById("time-machine");

function name({ target }) {
  if (target.id === "time-at") document.getElementById("when").textContent = moment(target.value * 1000, "minute");
}

export function startTimeMachine() {
  document.addEventListener("input", name);
  // A page that is live is left; one of the past is replaced in place, and the slider keeps its focus.
  document.addEventListener("change", ({ target }) => {
    if (target.id !== "time-at" || form().hasAttribute("hx-get") || target.value * 1000 > now() - 60000) return;
    sessionStorage.setItem(MOVING, "1");
    form().requestSubmit();
  });
  if (form() && sessionStorage.getItem(MOVING)) document.getElementById("time-at").focus();
  sessionStorage.removeItem(MOVING);
}
