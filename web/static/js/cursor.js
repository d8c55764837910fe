// The reading line: one moment that every chart of the page shows.
const listeners = new Set();
let moment = null; // Unix seconds; null when nobody reads

export function onCursor(listener) {
  listeners.add(listener);
}

export function cursor() {
  return moment;
}

export function moveCursor(at) {
  if (at === moment) return;
  moment = at;
  listeners.forEach((listener) => listener());
}

// Lets pointer and arrow keys over `element` move the line. view: () => {start, end}; plot: what the pointer is over.
export function readable(element, plot, view) {
  const at = (event) => {
    const box = plot.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const { start, end } = view();
    return start + Math.min(1, Math.max(0, share)) * (end - start);
  };
  element.addEventListener("pointermove", (event) => moveCursor(at(event)));
  element.addEventListener("pointerleave", () => moveCursor(null));
  element.addEventListener("keydown", (event) => {
    const { start, end } = view();
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const moved = (moment ?? end) + (step * (end - start)) / (event.shiftKey ? 10 : 60);
      moveCursor(Math.min(end, Math.max(start, moved)));
      event.preventDefault();
    } else if (event.key === "Escape") moveCursor(null);
  });
  element.addEventListener("blur", () => moveCursor(null));
}
