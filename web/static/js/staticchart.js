// Adds the page's cursor line to a server-rendered chart, with the values at the cursor.
import { nearest, shape } from "./chart.js";
import { cursor, onCursor, readable } from "./cursor.js";
import { duration, valueText } from "./formats.js";

const WIDTH = 1000;

// options: {start, end} of its axis, in the page's shared unit: Unix seconds, steps, or seconds since a start; for a
// chart with values also {by, format, lines: [[place, value], ...]}. A morph may change them.
export function staticchart(element) {
  const options = () => JSON.parse(element.dataset.options);
  const plots = () => [...element.querySelectorAll(".plot, .lag-row-strip")];
  const read = () => {
    const { start, end, by, format, lines } = options();
    const at = axis.place(cursor());
    const isInside = at !== null && at >= start && at <= end;
    for (const plot of plots()) {
      plot.querySelector(".cursor-line")?.remove();
      if (isInside) plot.append(line(plot, ((at - start) / (end - start)) * WIDTH));
    }
    if (!lines) return;
    element.querySelectorAll("[data-latest]").forEach((output, place) => {
      const found = isInside ? nearest(lines[place].map(asPoint), at) : null;
      output.textContent = found ? valueText(found.value, format) : output.dataset.latest;
    });
    // Of small multiples, which are many, only the used one shows and announces the place of the cursor.
    const isUsed = !element.matches(".multiple") || element.matches(":hover, :focus-within");
    show(element.querySelector(".reading"), element, isInside && isUsed ? at : null, by, (at - start) / (end - start));
  };
  const axis = axisOf(element);
  onCursor(() => element.isConnected && read());
  const box = { getBoundingClientRect: () => plots()[0].getBoundingClientRect() };
  readable(element, box, options, axis);
}

// Converts the cursor of the page to the chart's axis and back. On a page whose cursor is a time, an element around
// charts over steps has [[step, time], ...].
function axisOf(element) {
  const times = () => JSON.parse(element.closest("[data-step-times]")?.dataset.stepTimes ?? "null");
  return {
    place: (moment) => (moment === null ? null : between(times(), 1, 0, moment)),
    moment: (place) => between(times(), 0, 1, place),
  };
}

// Interpolates in rows that ascend in both columns; returns the number itself without rows, null beyond them.
function between(rows, from, to, number) {
  if (!rows) return number;
  const next = rows.findIndex((row) => row[from] >= number);
  if (next < 0 || (next === 0 && rows[0][from] !== number)) return null;
  if (next === 0) return rows[0][to];
  const [before, after] = [rows[next - 1], rows[next]];
  return before[to] + ((number - before[from]) / (after[from] - before[from])) * (after[to] - before[to]);
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
