// Redraws the version lag chart from live points, with the intervals of web/charts/version_lag.py.
import { drawXAxis, nearest, shape } from "./chart.js";
import { cursor, onCursor, readable } from "./cursor.js";
import { lagText, nodeName } from "./formats.js";
import { onPoints, points } from "./points.js";
import { WIDTH, windowOf, xPlace } from "./scales.js";

const MAX_CHARTED_NODES = 8;
const GAP_S = 3;
const BEHIND_Y = 6;

export function lagchart(element) {
  const { bound, range } = JSON.parse(element.dataset.options);
  const lagRows = element.querySelector('[data-part="lag-rows"]');
  const axis = element.querySelector('[data-part="x-axis"]');
  const rows = new Map();
  let view = windowOf(points, range);
  let shown = [];

  const draw = () => {
    view = windowOf(points, range);
    shown = points.filter((point) => point.at >= view.start);
    const names = [...new Set(shown.flatMap((point) => Object.keys(point.lags)))].sort().slice(0, MAX_CHARTED_NODES);
    if (names.length && names.join("\n") !== [...rows.keys()].join("\n")) build(names);
    for (const [name, row] of rows) row.strip.replaceChildren(...stretches(shown, name, view, bound));
    drawXAxis(axis, view);
    read();
  };

  const build = (names) => {
    rows.clear();
    for (const name of names) rows.set(name, newRow(name));
    lagRows.replaceChildren(...[...rows.values()].map((row) => row.item));
  };

  const read = () => {
    const at = cursor();
    const point = at === null ? shown[shown.length - 1] : nearest(shown, at);
    for (const [name, row] of rows) {
      row.latest.textContent = lagText(point?.lags[name]);
      row.strip.querySelector("line")?.remove();
      if (at !== null && point) row.strip.append(cursorLine(xPlace(view, point.at)));
    }
  };

  onPoints(draw);
  onCursor(read);
  if (points.length) draw();
  readable(lagRows, axis, () => view);
}

function stretches(shown, name, view, bound) {
  const found = [];
  let start = 0;
  let until = 0;
  let current = -1;
  const close = (end) => found.push(rectangle(start, end, current, view, bound));
  for (const point of shown) {
    const lag = point.lags[name];
    if (lag === undefined) continue;
    if (current >= 0 && (lag !== current || point.at - until > GAP_S)) {
      close(point.at - until <= GAP_S ? point.at : until);
      [start, current] = [point.at, lag];
    } else if (current < 0) [start, current] = [point.at, lag];
    until = point.at;
  }
  if (current >= 0) close(until);
  return found;
}

function rectangle(start, end, lag, view, bound) {
  const x = Math.max(0, xPlace(view, start));
  const width = Math.max(0, Math.min(WIDTH, xPlace(view, end)) - x);
  const level = lag === 0 ? "current" : lag <= bound ? "behind" : "beyond";
  const y = level === "behind" ? BEHIND_Y : 0;
  return shape("rect", { class: level, x: x.toFixed(1), y, width: width.toFixed(1), height: 16 - y });
}

function cursorLine(x) {
  return shape("line", { class: "cursor-line", x1: x, x2: x, y1: 0, y2: 16 });
}

function newRow(name) {
  const item = document.createElement("li");
  item.className = "lag-row";
  const label = document.createElement("span");
  label.className = "lag-row-name";
  label.title = name;
  const isolated = document.createElement("bdi");
  isolated.textContent = nodeName(name);
  label.append(isolated);
  const strip = shape("svg", {
    class: "lag-row-strip",
    viewBox: "0 0 1000 16",
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const latest = document.createElement("output");
  latest.className = "lag-row-latest";
  item.append(label, strip, latest);
  return { item, strip, latest };
}
