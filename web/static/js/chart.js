// Redraws a line chart from live points, in the elements that the server rendered.
import { cursor, onCursor, readable } from "./cursor.js";
import { duration, tickText, valueText } from "./formats.js";
import { onPoints, points } from "./points.js";
import { areaPath, dotPath, linePath, windowOf, xPlace, xTicks, yAxis } from "./scales.js";

const NAMESPACE = "http://www.w3.org/2000/svg";

export function chart(element) {
  const options = JSON.parse(element.dataset.options);
  const part = (name) => element.querySelector(`[data-part="${name}"]`);
  const body = part("body");
  let view = windowOf(points, options.range, options.end);
  let axis = null;
  let shown = [];

  const draw = () => {
    view = windowOf(points, options.range, options.end);
    shown = points.filter((point) => point.at >= view.start && point.at <= view.end);
    const numbers = shown.flatMap((point) => options.lines.map((line) => point.values[line.value]));
    axis = yAxis([...numbers, options.limit].filter((number) => number !== null), options.atLeast);
    options.lines.forEach((line, place) => {
      const places = shown.map((point) => {
        const value = point.values[line.value];
        return [xPlace(view, point.at), value === null ? null : axis.place(value, options.height)];
      });
      part(`line-${place}`).setAttribute("d", linePath(places));
      const last = places.findLast(([, y]) => y !== null);
      if (last) part(`end-${place}`)?.setAttribute("d", dotPath(...last));
      if (line.area) part(`area-${place}`).setAttribute("d", areaPath(places, axis.place(0, options.height)));
    });
    for (const line of element.querySelectorAll(".moment")) placeMoment(line, xPlace(view, Number(line.dataset.at)));
    drawAxes();
    drawCursor();
  };

  const drawAxes = () => {
    part("grid").replaceChildren(...axis.ticks.map((tick) => horizontal("grid", axis.place(tick, options.height))));
    if (options.limit !== null) place(part("limit"), axis.place(options.limit, options.height));
    if (!body) return;
    const texts = axis.ticks.map((tick) => text(34, axis.place(tick, options.height), tickText(tick, options.format)));
    part("y-axis").replaceChildren(...texts);
    drawXAxis(part("x-axis"), view);
  };

  const drawCursor = () => {
    if (!body) return;
    const at = cursor();
    const found = at === null ? null : nearest(shown, at);
    const read = found ?? shown[shown.length - 1];
    options.lines.forEach((line, place) => {
      part(`value-${place}`).textContent = valueText(read?.values[line.value], options.format);
    });
    part("cursor").replaceChildren(...(found ? cursorShapes(found) : []));
    showReading(part("reading"), body, part("plot"), found, view);
  };

  const cursorShapes = (found) => {
    const x = xPlace(view, found.at);
    const shapes = [shape("line", { class: "cursor-line", x1: x, x2: x, y1: 0, y2: options.height })];
    options.lines.forEach((line, place) => {
      const value = found.values[line.value];
      if (value === null) return;
      const style = part(`line-${place}`).classList[1];
      const d = dotPath(x, axis.place(value, options.height));
      shapes.push(shape("path", { class: `cursor-dot ${style}`, d }));
    });
    return shapes;
  };

  onPoints(draw);
  if (points.length) draw();
  if (!body) return;
  onCursor(drawCursor);
  readable(body, part("plot"), () => view);
}

export function drawXAxis(svg, view) {
  const texts = xTicks(view).map(([x, label]) => {
    const tick = text(`${x.toFixed(2)}%`, 14, label);
    if (x < 4) tick.setAttribute("class", "first");
    else if (x > 96) tick.setAttribute("class", "last");
    return tick;
  });
  svg.replaceChildren(...texts);
}

export function nearest(shown, at) {
  let best = null;
  for (const point of shown) if (!best || Math.abs(point.at - at) < Math.abs(best.at - at)) best = point;
  return best;
}

export function shape(name, attributes) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export function showReading(reading, body, plot, found, view) {
  if (!found) {
    reading.textContent = "";
    return;
  }
  const outer = body.getBoundingClientRect();
  const inner = plot.getBoundingClientRect();
  const x = inner.left - outer.left + (xPlace(view, found.at) / 1000) * inner.width;
  const clock = new Date(found.at * 1000).toLocaleTimeString();
  reading.textContent = view.range === null ? `${duration(found.at - view.start)} · ${clock}` : clock;
  const half = reading.offsetWidth / 2;
  reading.style.setProperty("--reading-x", `${Math.min(outer.width - half, Math.max(half, x))}px`);
}

export function horizontal(style, y) {
  return shape("line", { class: style, x1: 0, x2: 1000, y1: y.toFixed(1), y2: y.toFixed(1) });
}

function placeMoment(line, x) {
  line.setAttribute("x1", x.toFixed(1));
  line.setAttribute("x2", x.toFixed(1));
}

function place(line, y) {
  line.setAttribute("y1", y.toFixed(1));
  line.setAttribute("y2", y.toFixed(1));
}

export function text(x, y, label) {
  const element = shape("text", { x, y });
  element.textContent = label;
  return element;
}
