// Scale the slide and its appendix each to the largest size that fits one A4 page, landscape.

const LARGEST = 1, SMALLEST = 0.3, TRIES = 12;

function fits(sheet, size) {
  const content = sheet.querySelector(".sheet-content");
  sheet.style.setProperty("--fit", size);
  const room = sheet.clientHeight, width = sheet.clientWidth;
  // Rectangles are as drawn; half a pixel is rounding.
  const box = content.getBoundingClientRect();
  return box.height <= room + 0.5 && content.scrollWidth <= content.clientWidth + 1 && box.width <= width + 0.5;
}

// Bisect for the largest size: line breaks make the height no simple function of it.
function fit(sheet) {
  sheet.classList.add("measured");
  let low = SMALLEST, high = LARGEST;
  if (!fits(sheet, high)) {
    for (let i = 0; i < TRIES; i += 1) {
      const middle = (low + high) / 2;
      if (fits(sheet, middle)) low = middle;
      else high = middle;
    }
    sheet.style.setProperty("--fit", low);
  }
  sheet.classList.remove("measured");
}

function fitAll() {
  document.querySelectorAll(".sheet").forEach(fit);
  document.documentElement.dataset.fitted = "";
}

await document.fonts.ready;
fitAll();
addEventListener("beforeprint", fitAll);
