// Cursor line: one time that all charts of the page mark.
const listeners = new Set();
let moment = null; // Unix seconds; null without a cursor

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

// Moves the cursor with pointer and arrow keys on `element`. view: () => {start, end}; plot: area of the pointer.
// axis: converts the page's cursor to a place between start and end, and back; both may be null.
export function readable(element, plot, view, axis = { place: (at) => at, moment: (at) => at }) {
  const at = (event) => {
    const box = plot.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const { start, end } = view();
    return start + Math.min(1, Math.max(0, share)) * (end - start);
  };
  element.addEventListener("pointermove", (event) => moveCursor(axis.moment(at(event))));
  element.addEventListener("pointerleave", () => moveCursor(null));
  element.addEventListener("keydown", (event) => {
    const { start, end } = view();
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const moved = (axis.place(moment) ?? end) + (step * (end - start)) / (event.shiftKey ? 10 : 60);
      moveCursor(axis.moment(Math.min(end, Math.max(start, moved))));
      event.preventDefault();
    } else if (event.key === "Escape") moveCursor(null);
  });
  element.addEventListener("focusout", () => moveCursor(null));
}
