// Buttons that copy a text of the page: <button data-copies="id of the text">.
import { notify } from "./shell.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copies]");
  const field = button && document.getElementById(button.dataset.copies);
  if (!field) return;
  try {
    await navigator.clipboard.writeText(field.value ?? field.textContent);
    notify("Copied.");
  } catch {
    field.closest("details")?.setAttribute("open", "");
    if (field.select) field.select();
    else getSelection().selectAllChildren(field);
    notify("Text selected. Press Ctrl+C to copy it.");
  }
});
