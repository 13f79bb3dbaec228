// A slider and its number field, kept in sync.

function mirror(from, to) {
  from.addEventListener("input", () => { if (from.value !== "") to.value = from.value; });
}

for (const slider of document.querySelectorAll("input[data-mirrors]")) {
  const field = document.getElementById(slider.dataset.mirrors);
  slider.value = field.value;
  mirror(slider, field);
  mirror(field, slider);
}
