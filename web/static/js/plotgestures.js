// The page's cursor, and the gestures of a chart: pointer, pinch, click and keys.
import { resetZoom, settings } from "./plotcontrols.js";

const listeners = new Set();
const CLICK_PX = 4;
const DOUBLE_CLICK_MS = 250;
const attached = new WeakSet();
let cursor = null; // { kind, value } that all charts mark; null without a cursor

export function onCursor(listener) {
  listeners.add(listener);
}

export function pageCursor() {
  return cursor;
}

export function moveCursor(to) {
  if (to?.value === cursor?.value && to?.kind === cursor?.kind) return;
  cursor = to;
  listeners.forEach((listener) => listener());
}

// Attaches the gestures to a chart that is newly drawn, and once those of its figure.
export function gestures(figure, u, chart) {
  const { over } = u;
  const fingers = new Map();
  let pinch = null;
  let pressedAt = 0;
  const left = (event) => event.clientX - over.getBoundingClientRect().left;
  const span = () => [...fingers.values()].sort((a, b) => a - b);

  over.addEventListener("pointerdown", (event) => {
    pressedAt = event.clientX;
    if (event.pointerType !== "touch") return;
    fingers.set(event.pointerId, left(event));
    if (fingers.size === 2) pinch = span().map((x) => u.posToVal(x, "x"));
  });
  over.addEventListener("pointermove", (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, left(event));
    if (pinch && fingers.size === 2) {
      const [x0, x1] = span();
      const scale = (pinch[1] - pinch[0]) / Math.max(1, x1 - x0);
      const from = pinch[0] - x0 * scale;
      chart.zoom(from, from + over.clientWidth * scale);
    } else if (chart.columns().xs.length) chart.move(u.posToIdx(left(event)));
  });
  const lift = (event) => {
    fingers.delete(event.pointerId);
    if (fingers.size < 2) pinch = null;
  };
  for (const name of ["pointerup", "pointercancel"]) over.addEventListener(name, lift);
  over.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && moveCursor(null));
  let opening = null;
  over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - pressedAt) > CLICK_PX) return;
    clearTimeout(opening);
    const place = u.posToIdx(left(event));
    opening = setTimeout(() => open(figure, chart, place), settings.zoom ? DOUBLE_CLICK_MS : 0);
  });
  over.addEventListener("dblclick", () => {
    clearTimeout(opening);
    resetZoom();
  });
  chart.u = u;
  if (attached.has(figure)) return;
  attached.add(figure);
  figure.addEventListener("keydown", (event) => press(event, figure, chart));
  figure.addEventListener("focusout", () => moveCursor(null));
  figure.addEventListener("click", ({ target }) => {
    if (target.closest("[data-enlarge]")) enlarge(figure, chart);
    else if (target.closest("[data-png]")) import("./plotimage.js").then(({ download }) => download(figure, chart.u));
  });
}

function press(event, figure, chart) {
  if (event.target.closest(".menu, .legend, .marks") || event.ctrlKey || event.metaKey || event.altKey) return;
  const { xs } = chart.columns();
  const { min, max } = chart.u.scales.x;
  const [first, last] = [xs.findIndex((x) => x >= min), xs.findLastIndex((x) => x <= max)];
  const at = chart.place() ?? last;
  const width = Math.max(1, Math.round((last - first) / (event.shiftKey ? 10 : 60)));
  const step = { ArrowLeft: -width, ArrowRight: width }[event.key];
  const factor = { "+": 0.5, "-": 2 }[event.key];
  if (step && xs.length) chart.move(Math.min(last, Math.max(first, at + step)));
  else if (factor) chart.zoom(xs[at] - (xs[at] - min) * factor, xs[at] + (max - xs[at]) * factor);
  else if (event.key === "0" && settings.zoom) resetZoom();
  else if (event.key === "Enter" && !event.target.closest("a") && pageCursor()) open(figure, chart, at);
  else if (event.key === "Escape" && pageCursor()) moveCursor(null);
  else if (event.key === "Escape" && figure.matches(".enlarged")) enlarge(figure, chart);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

// Opens the samples of the step at a point.
function open(figure, chart, place) {
  const step = figure.dataset.samples && place !== null ? chart.step(place) : null;
  if (step !== null) location.assign(figure.dataset.samples + Math.round(step));
}

function enlarge(figure, chart) {
  const isLarge = figure.classList.toggle("enlarged");
  figure.querySelector("[data-enlarge]").textContent = isLarge ? "Shrink" : "Enlarge";
  chart.redraw();
  figure.scrollIntoView({ block: "nearest" });
}
