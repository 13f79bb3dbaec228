// Set dark or light theme before the first paint; blocking, so that the page does not flash.
(() => {
  const root = document.documentElement;
  root.classList.remove("no-js");
  let choice = "system";
  try {
    choice = localStorage.getItem("trnwatch.theme") ?? "system";
  } catch {
    // Storage may be forbidden; the system's choice then stands.
  }
  if (choice === "light" || choice === "dark") root.dataset.theme = choice;
})();
