// A chart that the server drew takes part in the page's reading line, and says what its lines have there.
import { nearest, shape } from "./chart.js";
import { cursor, onCursor, readable } from "./cursor.js";
import { duration, valueText } from "./formats.js";

const WIDTH = 1000;

// options: {start, end} of its axis, in what the page's charts share: Unix seconds, or steps, or seconds since a start;
// of a chart with values to read also {by, format, lines: [[place, value], ...]}. A morph may change them.
export function traced(element) {
  const options = () => JSON.parse(element.dataset.options);
  const plots = () => [...element.querySelectorAll(".plot, .rung-strip")];
  const read = () => {
    const { start, end, by, format, lines } = options();
    const at = cursor();
    const isInside = at !== null && at >= start && at <= end;
    for (const plot of plots()) {
      plot.querySelector(".cursor-line")?.remove();
      if (isInside) plot.append(line(plot, ((at - start) / (end - start)) * WIDTH));
    }
    if (!lines) return;
    element.querySelectorAll(".legend output").forEach((output, place) => {
      const found = isInside ? nearest(lines[place].map(asPoint), at) : null;
      output.textContent = found ? valueText(found.value, format) : output.dataset.latest;
    });
    show(element.querySelector(".reading"), element, isInside ? at : null, by, (at - start) / (end - start));
  };
  onCursor(() => element.isConnected && read());
  const box = { getBoundingClientRect: () => plots()[0].getBoundingClientRect() };
  readable(element, box, options);
}

function asPoint([at, value]) {
  return { at, value };
}

function line(plot, x) {
  const height = plot.viewBox.baseVal.height;
  return shape("line", { class: "cursor-line", x1: x.toFixed(1), x2: x.toFixed(1), y1: 0, y2: height });
}

function show(reading, element, at, by, share) {
  if (at === null) {
    reading.textContent = "";
    return;
  }
  const outer = element.querySelector(".chart-body").getBoundingClientRect();
  const inner = element.querySelector(".plot").getBoundingClientRect();
  reading.textContent = by === "step" ? `step ${Math.round(at)}` : duration(at);
  const half = reading.offsetWidth / 2;
  const x = inner.left - outer.left + share * inner.width;
  reading.style.setProperty("--reading-x", `${Math.min(outer.width - half, Math.max(half, x))}px`);
}
