// Viewer preferences in local storage; kept for the page only where storage is blocked.

const page = {};

export function recall(name, otherwise) {
  try {
    return localStorage.getItem(`trnwatch.${name}`) ?? page[name] ?? otherwise;
  } catch {
    return page[name] ?? otherwise;
  }
}

export function remember(name, value) {
  page[name] = value;
  try {
    localStorage.setItem(`trnwatch.${name}`, value);
  } catch {
    // Storage may be forbidden; the choice lasts for this page.
  }
}
