// Axes, ticks and paths, with the geometry of web/charts/scales.py.
import { duration } from "./formats.js";

export const WIDTH = 1000;
const SHORTEST_S = 60;
const STEPS_S = [10, 20, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];

// fixedEnd: end of a fixed range; undefined or null for a moving one.
export function windowOf(points, range, fixedEnd) {
  if (fixedEnd) return { start: fixedEnd - range, end: fixedEnd, range, isFixed: true };
  const end = points.length ? points[points.length - 1].at : 0;
  const begin = points.length ? points[0].at : end;
  if (range === null) return { start: begin, end: Math.max(end, begin + SHORTEST_S), range };
  return { start: Math.min(Math.max(begin, end - range), end - SHORTEST_S), end, range };
}

export function xPlace(view, at) {
  return ((at - view.start) / (view.end - view.start)) * WIDTH;
}

export function yAxis(values, atLeast) {
  const high = Math.max(atLeast, ...values);
  const low = Math.min(0, ...values);
  const step = roundStep((high - low) / 4);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  const ticks = Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
  const axis = { low: first * step, high: last * step, ticks };
  axis.place = (value, height) => ((axis.high - value) / (axis.high - axis.low)) * height;
  return axis;
}

export function xTicks(view) {
  const span = view.end - view.start;
  const step = STEPS_S.find((candidate) => span / candidate <= 5) ?? STEPS_S[STEPS_S.length - 1];
  const places = Array.from({ length: Math.floor(span / step + 1e-9) + 1 }, (_, place) => place * step);
  if (view.range === null) return places.map((s) => [(100 * s) / span, s ? duration(s) : "start"]);
  return places.map((s) => [100 - (100 * s) / span, s ? `\u2212${duration(s)}` : view.isFixed ? "end" : "now"]).reverse();
}

export function linePath(places) {
  let path = "";
  let isDown = false;
  for (const [x, y] of bends(places)) {
    if (y !== null) path += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = y !== null;
  }
  return path;
}

export function areaPath(places, base) {
  let path = "";
  let stretch = [];
  for (const [x, y] of [...bends(places), [0, null]]) {
    if (y !== null) {
      stretch.push([x, y]);
      continue;
    }
    if (stretch.length > 1) {
      const inner = stretch.map(([px, py]) => `L${px.toFixed(1)} ${py.toFixed(1)}`).join("");
      path += `M${stretch[0][0].toFixed(1)} ${base.toFixed(1)}${inner}L${stretch.at(-1)[0].toFixed(1)} ${base.toFixed(1)}Z`;
    }
    stretch = [];
  }
  return path;
}

// Drops points inside level segments, which do not change the line.
function bends(places) {
  const isLevel = (one, other) => one[1] === other[1] && one[2] === other[2];
  return places.filter((place, at) => {
    const isEnd = at === 0 || at === places.length - 1;
    return isEnd || !isLevel(places[at - 1], place) || !isLevel(place, places[at + 1]);
  });
}

export function stepPath(places) {
  let path = "";
  let before = null;
  for (const [x, y] of places) {
    if (y !== null) path += before === null ? `M${at(x)} ${at(y)}` : `H${at(x)}${y === before ? "" : `V${at(y)}`}`;
    before = y;
  }
  return path;
}

// Items: x, upper and lower end; null interrupts the band.
export function betweenPath(places) {
  let path = "";
  let stretch = [];
  for (const place of [...bends(places), [0, null, null]]) {
    if (place[1] !== null && place[2] !== null) {
      stretch.push(place);
      continue;
    }
    if (stretch.length > 1) {
      const back = [...stretch].reverse();
      path += `M${stretch.map(([x, y]) => `${at(x)} ${at(y)}`).join("L")}L${back.map(([x, , y]) => `${at(x)} ${at(y)}`).join("L")}Z`;
    }
    stretch = [];
  }
  return path;
}

const at = (number) => number.toFixed(1);

// Stroke of zero length, whose round ends stay round when the plot is stretched.
export function dotPath(x, y) {
  return `M${x.toFixed(1)} ${y.toFixed(1)}h0.01`;
}

function roundStep(rough) {
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((step) => step >= rough * (1 - 1e-9));
}
