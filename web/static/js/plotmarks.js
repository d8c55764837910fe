// Annotations of charts: vertical lines, and above some charts links to their events.
import { root } from "./address.js";
import { convert } from "./tables.js";

const MERGE_PX = 10;

// Draws a line for each annotation of the chart's table, and moves the links of its lane.
export function drawMarks(figure, u, { table, kind }) {
  const { left, top, width, height } = u.bbox;
  const places = placesOf(u, table, kind);
  const [loss, other] = places.length ? [colour(figure, "--bad"), colour(figure, "--accent")] : [];
  u.ctx.save();
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.setLineDash([]);
  for (const { x, annotation } of places) {
    u.ctx.strokeStyle = ["loss", "alert"].includes(annotation[2]) ? loss : other;
    u.ctx.globalAlpha = 0.45;
    const at = left + (x / u.over.clientWidth) * width;
    u.ctx.stroke(new Path2D(`M${at} ${top}V${top + height}`));
  }
  u.ctx.restore();
  const lane = figure.querySelector(".marks");
  if (lane) place(lane, u, places);
}

// Returns the value of a colour token in the current theme.
export function colour(figure, name) {
  const probe = figure.querySelector("[data-part=probe]");
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

// Returns the texts of the annotations at a row of a chart.
export function textOfMarks(u, { table, kind, xs }, row) {
  const x = u.valToPos(xs[row], "x");
  return placesOf(u, table, kind).filter((mark) => Math.abs(mark.x - x) < MERGE_PX / 2).map(({ annotation }) => annotation[3]).join(" ");
}

function placesOf(u, table, kind) {
  return (table.annotations ?? [])
    .map((annotation) => ({ annotation, at: convert(table, "time", kind, annotation[1]) }))
    .filter(({ at }) => at !== null && at >= u.scales.x.min && at <= u.scales.x.max)
    .map(({ annotation, at }) => ({ annotation, x: u.valToPos(at, "x") }));
}

// An element is kept as long as its newest event, so that it keeps the focus.
function place(lane, u, places) {
  const marks = new Map();
  for (const { x, annotation } of places) {
    const key = `${annotation[2]} ${Math.floor(x / MERGE_PX)}`;
    marks.set(key, { x, annotation, count: (marks.get(key)?.count ?? 0) + 1 });
  }
  const wanted = new Map([...marks.values()].map((mark) => [String(mark.annotation[0]), mark]));
  for (const link of lane.querySelectorAll("a")) if (!wanted.has(link.dataset.number)) link.remove();
  for (const [number, { x, annotation, count }] of wanted) {
    const link = lane.querySelector(`a[data-number="${number}"]`) ?? lane.appendChild(newLink(lane, annotation));
    link.style.setProperty("--mark-x", `${u.over.offsetLeft + x}px`);
    link.title = count > 1 ? `${annotation[3]} (and ${count - 1} before)` : annotation[3];
    link.setAttribute("aria-label", link.title);
  }
  const links = [...lane.children].sort((a, b) => a.offsetLeft - b.offsetLeft);
  if (!links.some(({ tabIndex }) => tabIndex === 0) && links.length) links.at(-1).tabIndex = 0;
  lane.onkeydown = rove;
}

// Events open beside the page, decisions of the fleet service on their own.
function newLink(lane, [number, , kind, , path]) {
  const link = Object.assign(document.createElement("a"), { className: `mark ${kind}`, tabIndex: -1 });
  const ordinal = /^\/events\/(\d+)$/.exec(path)?.[1];
  link.dataset.number = number;
  link.href = ordinal ? lane.dataset.href.replace("{}", ordinal) : root + path;
  if (ordinal && "drawers" in lane.dataset) {
    link.dataset.drawer = "";
    link.dataset.ordinal = ordinal;
  }
  return link;
}

// One tab stop; arrow keys move between links.
function rove(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  event.stopPropagation();
  const links = [...event.currentTarget.children].sort((a, b) => a.offsetLeft - b.offsetLeft);
  const next = links[links.indexOf(document.activeElement) + step];
  if (!next) return;
  for (const link of links) link.tabIndex = link === next ? 0 : -1;
  next.focus();
}
