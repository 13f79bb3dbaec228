// Scale the trial report to the largest size that fits one A4 page, landscape.

const LARGEST = 1, SMALLEST = 0.3, TRIES = 12;
const sheet = document.querySelector(".sheet");
const content = document.querySelector(".sheet-content");

function fits(size) {
  sheet.style.setProperty("--fit", size);
  const room = sheet.clientHeight, width = sheet.clientWidth;
  // Rectangles are as drawn; half a pixel is rounding.
  const box = content.getBoundingClientRect();
  return box.height <= room + 0.5 && content.scrollWidth <= content.clientWidth + 1 && box.width <= width + 0.5;
}

// Bisect for the largest size: line breaks make the height no simple function of it.
function fit() {
  sheet.classList.add("measured");
  let low = SMALLEST, high = LARGEST;
  if (!fits(high)) {
    for (let i = 0; i < TRIES; i += 1) {
      const middle = (low + high) / 2;
      if (fits(middle)) low = middle;
      else high = middle;
    }
    sheet.style.setProperty("--fit", low);
  }
  sheet.classList.remove("measured");
  document.documentElement.dataset.fitted = "";
}

await document.fonts.ready;
fit();
addEventListener("beforeprint", fit);
