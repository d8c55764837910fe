// Live texts: each element with data-cell shows the text of that key.
let index = null;

for (const name of ["htmx:after:swap", "live-region"]) document.addEventListener(name, () => (index = null));

export function patchCells(cells) {
  index ??= indexed();
  for (const [key, [text, tone]] of Object.entries(cells)) {
    for (const element of index.get(key) ?? []) {
      if (element.textContent !== text) element.textContent = text;
      if (element.dataset.tone !== tone) element.dataset.tone = tone;
    }
  }
}

function indexed() {
  const found = new Map();
  for (const element of document.querySelectorAll("[data-cell]")) {
    const key = element.dataset.cell;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(element);
  }
  return found;
}
