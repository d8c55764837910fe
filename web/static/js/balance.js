// Redraws the chart of demand and capacity from live points, with the shapes of web/overview/balance.py.
import { drawXAxis, horizontal, nearest, shape, showReading, text } from "./chart.js";
import { cursor, onCursor, readable } from "./cursor.js";
import { tickText, valueText } from "./formats.js";
import { onPoints, annotations, points } from "./points.js";
import { areaPath, betweenPath, linePath, stepPath, WIDTH, windowOf, xPlace, yAxis } from "./scales.js";

const BARS = 120;
const QUARTER = 0.25;
const MAX_GAP_S = 90;
const ANNOTATION_SLOTS = 90;
const LINES = ["demand", "ready", "ordered", "low", "high", "aimed"];
const AXIS = ["demand", "ordered", "high", "aimed", "ready"];

export function balance(element) {
  const options = JSON.parse(element.dataset.options);
  const part = (name) => element.querySelector(`[data-part="${name}"]`);
  const { height, waitHeight } = options;
  const set = (name, path) => part(name).setAttribute("d", path);
  let view;
  let shown = [];

  const draw = () => {
    view = windowOf(points, options.range, options.end);
    shown = points.filter(({ at }) => at >= view.start && at <= view.end);
    const numbers = shown.flatMap(({ values }) => AXIS.map((name) => values[name]));
    const axis = yAxis(numbers.filter((number) => number !== null), 1);
    const y = (value) => (value === null ? null : axis.place(value, height));
    const places = Object.fromEntries(
      LINES.map((name) => [name, shown.map(({ at, values }) => [xPlace(view, at), y(values[name])])]),
    );
    const between = (upper, lower) => betweenPath(upper.map(([x, top], place) => [x, top, lower[place][1]]));
    set("band", between(places.high, places.low));
    set("ready", areaPath(places.ready, height));
    set("edge", linePath(places.ready));
    set("pending", between(places.ordered, places.ready));
    set("demand", linePath(places.demand));
    set("aimed", stepPath(places.aimed));
    part("grid").replaceChildren(...axis.ticks.map((tick) => horizontal("grid", y(tick))));
    part("y-axis").replaceChildren(...axis.ticks.map((tick) => text(34, y(tick), tickText(tick, "rate"))));
    drawBars();
    drawXAxis(part("x-axis"), view);
    drawAnnotations();
    element.toggleAttribute("data-unmeasured", shown.every(({ values }) => values.demand === null));
    read();
  };

  const drawBars = () => {
    const stretches = new Map();
    let most = 0;
    let ticks = "";
    let before = null;
    let ticked = -1;
    let last = 0;
    const barAt = (at) => Math.min(BARS - 1, Math.floor((xPlace(view, at) / WIDTH) * BARS));
    for (const { at, values } of shown) {
      const place = barAt(at);
      const first = at - last <= MAX_GAP_S ? Math.min(place, barAt(last) + 1) : place;
      last = at;
      if (before !== null && values.version > before && place !== ticked) {
        ticks += `M${(((place + 0.5) * WIDTH) / BARS).toFixed(1)} 0v5`;
        ticked = place;
      }
      before = values.version;
      if (values.wait === null) continue;
      most = Math.max(most, values.wait);
      for (let bar = first; bar <= place; bar++) stretches.set(bar, [...(stretches.get(bar) ?? []), values.wait]);
    }
    const highest = Math.max(1, Math.ceil(most / QUARTER)) * QUARTER;
    const width = WIDTH / BARS;
    const paths = { fed: "", waits: "" };
    for (const [place, found] of stretches) {
      const mean = found.reduce((sum, wait) => sum + wait, 0) / found.length;
      const top = Math.min((1 - mean / highest) * waitHeight, waitHeight - 1);
      const bar = `M${(place * width + 0.6).toFixed(1)} ${waitHeight}V${top.toFixed(1)}h${(width - 1.2).toFixed(1)}V${waitHeight}Z`;
      paths[mean <= options.fedBelow ? "fed" : "waits"] += bar;
    }
    set("fed", paths.fed);
    set("waits", paths.waits);
    set("published", ticks);
    const limit = ((1 - options.fedBelow / highest) * waitHeight).toFixed(1);
    part("wait-axis").replaceChildren(
      text(34, 0, tickText(highest, "percent")),
      text(34, limit, tickText(options.fedBelow, "percent")),
    );
    part("limit").setAttribute("y1", limit);
    part("limit").setAttribute("y2", limit);
  };

  // An element is kept as long as its newest event, so that it keeps the focus.
  const drawAnnotations = () => {
    const lane = part("annotations");
    const marks = new Map();
    for (const annotation of annotations) {
      if (annotation[1] < view.start || annotation[1] > view.end) continue;
      const key = `${annotation[2]} ${Math.floor((xPlace(view, annotation[1]) / WIDTH) * ANNOTATION_SLOTS)}`;
      marks.set(key, { annotation, count: (marks.get(key)?.count ?? 0) + 1 });
    }
    const wanted = new Map([...marks.values()].map((mark) => [String(mark.annotation[0]), mark]));
    for (const link of lane.querySelectorAll("a")) if (!wanted.has(link.dataset.ordinal)) link.remove();
    for (const [ordinal, { annotation, count }] of wanted) {
      const link = lane.querySelector(`a[data-ordinal="${ordinal}"]`) ?? lane.appendChild(newAnnotation(lane, annotation));
      link.firstElementChild.setAttribute("x", `${(xPlace(view, annotation[1]) / 10).toFixed(2)}%`);
      const label = count > 1 ? `${annotation[3]} (and ${count - 1} before)` : annotation[3];
      if (link.getAttribute("aria-label") !== label) {
        link.setAttribute("aria-label", label);
        link.querySelector("title").textContent = label;
      }
    }
  };

  const read = () => {
    const at = cursor();
    const found = at === null ? null : nearest(shown, at);
    const values = (found ?? shown.at(-1))?.values ?? {};
    const { ready, ordered } = values;
    const pending = ready != null && ordered != null ? Math.max(0, ordered - ready) : null;
    for (const name of ["demand", "ready", "aimed"]) part(`value-${name}`).textContent = valueText(values[name], "rate");
    part("value-pending").textContent = valueText(pending, "rate");
    part("value-wait").textContent = valueText(values.wait, "percent");
    for (const [name, tall] of [["cursor", height], ["wait-cursor", waitHeight]]) {
      const x = found ? xPlace(view, found.at) : 0;
      const line = shape("line", { class: "cursor-line", x1: x, x2: x, y1: 0, y2: tall });
      part(name).replaceChildren(...(found ? [line] : []));
    }
    showReading(part("reading"), part("body"), part("plot"), found, view);
  };

  onPoints(draw);
  onCursor(read);
  if (points.length) draw();
  readable(part("body"), part("plot"), () => view);
  rove(part("annotations"));
}

function newAnnotation(lane, [ordinal, , kind]) {
  const template = lane.parentElement.querySelector(`template[data-kind="${kind}"]`);
  const link = template.content.querySelector("a").cloneNode(true);
  link.dataset.ordinal = ordinal;
  link.setAttribute("href", link.getAttribute("href").replace("event=", `event=${ordinal}`));
  return link;
}

// One tab stop; arrow keys move between annotations.
function rove(lane) {
  const links = () =>
    [...lane.querySelectorAll("a")].sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x);
  const reach = (chosen) => links().forEach((link) => link.setAttribute("tabindex", link === chosen ? 0 : -1));
  const settle = () => links().some((link) => link.getAttribute("tabindex") === "0") || reach(links().at(-1));
  settle();
  onPoints(settle);
  lane.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const all = links();
    const next = all[all.indexOf(event.target.closest("a")) + step];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    if (!next) return;
    reach(next);
    next.focus();
  });
}
