// Draws a panel of web/charts/panels.py with uPlot, while it is visible. Its colours are those of its legend's swatches.
import { duration, tickText, valueText } from "./formats.js";
import { gestures, moveCursor, onCursor, pageCursor } from "./plotgestures.js";
import { drawGaps, gapsOf } from "./plotgaps.js";
import { colour, drawMarks, textOfMarks } from "./plotmarks.js";
import { columnsOf, smoothed } from "./plotdata.js";
import { change, onSettings, settings } from "./plotcontrols.js";
import { convert, onTables, refine } from "./tables.js";

const SHORTEST_S = 60;
const LARGE_HEIGHT = 320;
const FAINT = 0.3;

const views = new Map(); // by figure
const seen = new IntersectionObserver((entries) => entries.forEach(see), { rootMargin: "80px" });
const sized = new ResizeObserver((entries) => entries.forEach(({ target }) => views.get(target.closest("figure"))?.resize()));
let isPlanned = false;
let strips = null; // module that draws strips of nodes, loaded with the first of them

const library = globalThis.uPlot ? Promise.resolve() : new Promise((resolve, reject) => {
  const script = document.createElement("script");
  Object.assign(script, { src: new URL("../vendor/uPlot-1.6.32.iife.min.js", import.meta.url), onload: resolve, onerror: reject });
  document.head.append(script);
});

onTables(() => drawLater(false));
onSettings(() => {
  drawLater(true);
  if (settings.zoom) refine(settings.zoom);
});
onCursor(() => views.forEach((view) => (view.isSeen || !pageCursor()) && view.read()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawLater(true));

function see({ target, isIntersecting }) {
  const view = views.get(target);
  if (!target.isConnected) return;
  view.isSeen = isIntersecting;
  if (!isIntersecting) return;
  view.read();
  drawLater();
}

// Marks all charts as outdated, and draws the visible ones in the next frame. isNew: settings changed.
function drawLater(isNew = null) {
  if (isNew !== null) views.forEach((view) => ((view.isDirty = true), (view.isNew ||= isNew)));
  if (isPlanned) return;
  isPlanned = true;
  requestAnimationFrame(async () => {
    await library;
    isPlanned = false;
    for (const [figure, view] of views) {
      if (!figure.isConnected) views.delete(figure);
      else if (view.isSeen && view.isDirty) {
        if (figure.querySelector(".swatch.lag")) strips ??= await import("./plotstrips.js");
        view.draw();
      }
    }
  });
}

export function plot(figure) {
  const host = figure.querySelector("[data-part=plot]");
  const reading = figure.querySelector(".reading");
  const outputs = [...figure.querySelectorAll("[data-value]")];
  const options = () => ({ ...JSON.parse(figure.dataset.options), isWhole: figure.matches(".enlarged") });
  let u = null;
  let shown = null; // what is drawn: see columnsOf
  let current = null; // options that are drawn

  const view = { isSeen: false, isDirty: true, isNew: true };

  view.draw = () => {
    current = options();
    const next = columnsOf(current, settings.x);
    if (!next) return;
    next.key = JSON.stringify([next.kind, next.lines]);
    const isSame = u && !view.isNew && next.key === shown.key;
    shown = next;
    [view.isDirty, view.isNew] = [false, false];
    const data = [shown.xs, ...shown.drawn, ...extra()];
    if (isSame) u.setData(data);
    else {
      u?.destroy();
      u = new uPlot(definition(), data, host);
      figure.dataset.kind = shown.kind;
      gestures(figure, u, handle);
    }
    figure.toggleAttribute("data-empty", shown.values.every((column) => column.every((value) => (value ?? null) === null)));
    queueMicrotask(view.read); // after uPlot's own, which sets the scales
  };

  view.resize = () => u && u.width !== host.clientWidth && u.setSize({ width: host.clientWidth, height: heightOf() });

  // Shows the values at the page's cursor, else the latest ones.
  view.read = () => {
    if (!u || view.isDirty) return;
    const place = handle.place();
    const isInside = place !== null && shown.xs[place] >= u.scales.x.min && shown.xs[place] <= u.scales.x.max;
    u.setCursor({ left: isInside ? u.valToPos(shown.xs[place], "x") : -10, top: isInside ? 0 : -10 }, false);
    for (const output of outputs) {
      const line = Number(output.dataset.value);
      output.textContent = valueText(isInside ? valueAt(line, place) : shown.latest?.[line] ?? valueAt(line, null), output.dataset.format);
    }
    if (current.form === "strips") u.redraw(false);
    showReading(isInside ? place : null);
  };

  const handle = {
    view,
    columns: () => shown,
    options: () => current,
    place: () => {
      const at = pageCursor();
      const x = at && convert(shown.table, at.kind, shown.kind, at.value);
      return x === null || !shown.xs.length ? null : u.valToIdx(x);
    },
    move: (place) => moveCursor({ kind: shown.kind, value: shown.xs[place] }),
    zoom: (from, to) => change({ zoom: { kind: shown.kind, from, to } }),
    redraw: () => {
      view.isNew = view.isDirty = true;
      drawLater();
    },
    step: (place) => convert(shown.table, shown.kind, "step", shown.xs[place]),
  };

  const heightOf = () => (figure.matches(".enlarged") ? LARGE_HEIGHT : current.height);
  const isHidden = (place) => settings.hidden.has(`${current.name}.${place}`);
  const isSmooth = () => settings.smoothing > 0 && current.form === "lines" && !current.isBare;
  const extra = () => (isSmooth() ? shown.values.map((column) => smoothed(column, settings.smoothing)) : []);

  function valueAt(line, place) {
    const column = shown.values[line] ?? [];
    if (place !== null) return column[place] ?? column.slice(0, place).findLast((value) => (value ?? null) !== null);
    return column.findLast((value) => (value ?? null) !== null);
  }

  function showReading(place) {
    // Of small multiples, which are many, only the used one shows and announces the place of the cursor.
    const isUsed = !figure.matches(".multiple:not(.enlarged)") || figure.matches(":hover, :focus-within");
    if (place === null || !isUsed || !reading) {
      if (reading) reading.textContent = "";
      return;
    }
    const gap = shown.values.some((column) => (column[place] ?? null) === null) && gapsOf(shown, current).find(({ rows: [first, last] }) => first <= place && place <= last);
    reading.textContent = [xText(shown, place), gap ? gap.text : "", textOfMarks(u, shown, place)].filter(Boolean).join(" · ");
    const half = reading.offsetWidth / 2;
    const x = host.offsetLeft + u.over.offsetLeft + u.valToPos(shown.xs[place], "x");
    reading.style.setProperty("--reading-x", `${Math.min(figure.clientWidth - half, Math.max(half, x))}px`);
  }

  function definition() {
    const ink = colour(figure, "--ink-3");
    const font = `11px ${getComputedStyle(figure).fontFamily}`;
    const axis = { stroke: ink, font, ticks: { show: false }, grid: { stroke: colour(figure, "--grid"), width: 1 }, show: !current.isBare };
    const isStrips = current.form === "strips";
    const y = isStrips ? strips.axes(axis, () => u, () => shown) : [{ ...axis, size: figure.matches(".multiple") ? 50 : 44, gap: 4, space: current.height > 100 ? 36 : 22, values: (_, ticks) => ticks.map((tick) => (tick === null || (settings.isLog && !isRound(tick)) ? "" : tickText(tick, current.format))) }];
    return {
      width: host.clientWidth,
      height: heightOf(),
      padding: current.isBare ? [2, 0, 2, 0] : [8, isStrips ? 0 : 22, 0, 0],
      legend: { show: false },
      cursor: { show: !current.isBare, y: false, points: { show: !isStrips, size: 7 }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false, range: xRange }, y: isStrips ? { range: [0, Math.max(1, shown.lines.length)] } : yScale() },
      axes: [{ ...axis, size: 26, gap: 6, space: 64, incrs: incrementsOf(shown.kind), values: (_, ticks, __, ___, step) => ticks.map((tick) => xTick(tick, shown.kind, step)) }, ...y],
      series: [{}, ...shown.lines.map((line, place) => seriesOf(line, place, isSmooth() ? FAINT : 1)), ...(isSmooth() ? shown.lines.map((line, place) => seriesOf(line, place, 1)) : [])],
      bands: bandsOf(),
      hooks: {
        drawClear: [() => isStrips && strips.draw(figure, u, shown, current.limit)],
        draw: [() => drawLimit(ink), () => current.isBare || drawMarks(figure, u, shown), () => current.isBare || isStrips || drawGaps(u, shown, current, [ink, colour(figure, "--surface")])],
        setSelect: [(self) => self.select.width > 4 && (handle.zoom(self.posToVal(self.select.left, "x"), self.posToVal(self.select.left + self.select.width, "x")), self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false))],
      },
    };
  }

  function xRange() {
    const { zoom } = settings;
    const [from, to] = zoom ? [zoom.from, zoom.to].map((end) => convert(shown.table, zoom.kind, shown.kind, end)) : [];
    if ((from ?? to ?? null) !== null) return [from ?? shown.xs[0], to ?? shown.xs.at(-1)];
    const { table, kind, xs } = shown;
    if (kind === "time" && table.end) return [table.end - table.range, table.end];
    const [first, last] = [xs[0] ?? 0, xs.at(-1) ?? 0];
    return kind === "time" || kind === "elapsed" ? [Math.min(first, last - SHORTEST_S), last] : [first, Math.max(last, first + 1)];
  }

  function yScale() {
    if (current.form === "shares") return { range: [0, 1] };
    const known = shown.drawn.flat().filter(Boolean);
    const isPositive = known.every((value) => value > 0);
    if (settings.isLog && known.length && !current.isBare)
      return isPositive ? { distr: 3, range: (_, low, high) => (low ? [low / 1.1, high * 1.1] : [1, 10]) } : { distr: 4, asinh: Math.min(...known.map(Math.abs)) };
    return {
      range: (_, low, high) => {
        const ends = [low, high, current.limit, current.fromZero ? 0 : null].filter((end) => (end ?? null) !== null);
        const [bottom, top] = [Math.min(...ends), Math.max(current.atLeast ?? -Infinity, ...ends)];
        if (!Number.isFinite(bottom + top)) return [0, current.atLeast ?? 1];
        if (bottom === top) return [bottom - (Math.abs(bottom) / 10 || 1), top + (Math.abs(top) / 10 || 1)];
        return current.fromZero && bottom === 0 ? [0, top * 1.05] : [bottom - (top - bottom) * 0.06, top + (top - bottom) * 0.06];
      },
    };
  }

  function seriesOf(line, place, alpha) {
    const swatch = swatchOf(place);
    const isShare = current.form === "shares";
    const dash = swatch.getPropertyValue("--dash").trim();
    return {
      stroke: swatch.color,
      fill: filled(swatch) && alpha === 1 && (!isShare || place === 0) ? swatch.backgroundColor : undefined,
      width: isShare || current.form === "strips" ? 0 : Number(swatch.getPropertyValue("--width")) || 1.75,
      dash: dash ? dash.split(" ").map(Number) : undefined,
      alpha,
      show: !isHidden(place),
      spanGaps: isShare,
      paths: current.form === "strips" ? () => null : line.draw === "step" || line.isTotal ? uPlot.paths.stepped({ align: line.isTotal ? -1 : 1 }) : undefined,
      points: current.form === "lines" && !current.isBare ? { size: 5 } : { show: false },
    };
  }

  function swatchOf(line) {
    return getComputedStyle(figure.querySelector(`[data-line="${line}"] .swatch`) ?? figure.querySelector(".swatch"));
  }

  function bandsOf() {
    const place = (value) => 1 + current.lines.findIndex((line) => line.value === value);
    if (current.form === "shares")
      return shown.lines.slice(1).map((_, line) => ({ series: [line + 2, line + 1], fill: swatchOf(line + 1).backgroundColor }));
    return current.bands.map(([upper, lower], band) => ({ series: [place(upper), place(lower)], fill: getComputedStyle(figure.querySelector(`[data-band="${band}"]`)).backgroundColor }));
  }

  function drawLimit(ink) {
    if (current.limit === null || current.form !== "lines" || current.isBare) return;
    const y = u.valToPos(current.limit, "y", true);
    const { left, width } = u.bbox;
    u.ctx.save();
    u.ctx.strokeStyle = ink;
    u.ctx.lineWidth = uPlot.pxRatio;
    u.ctx.setLineDash([uPlot.pxRatio, 4 * uPlot.pxRatio]);
    u.ctx.stroke(new Path2D(`M${left} ${y}H${left + width}`));
    u.ctx.restore();
  }

  figure.querySelectorAll("button[data-line]").forEach((button) => {
    button.disabled = false;
    const show = () => button.setAttribute("aria-pressed", String(!isHidden(button.dataset.line)));
    current = options();
    onSettings(show);
    show();
    button.addEventListener("click", () => {
      const [key, hidden] = [`${current.name}.${button.dataset.line}`, new Set(settings.hidden)];
      if (!hidden.delete(key)) hidden.add(key);
      change({ hidden });
    });
  });
  views.set(figure, view);
  sized.observe(host);
  seen.observe(figure);
}

const isRound = (tick) => Math.abs(tick - Number(tick.toPrecision(1))) <= 1e-9 * Math.abs(tick);
const filled = (style) => !/^rgba\(0, 0, 0, 0\)$|transparent/.test(style.backgroundColor);

function xText({ kind, xs, table }, place) {
  const x = xs[place];
  const steps = kind !== "step" && table.kinds.step ? convert(table, kind, "step", x) : null;
  const stepText = (step) => `step ${valueText(Math.round(step), "count")}`;
  const texts = { time: () => new Date(x * 1000).toLocaleTimeString(), elapsed: () => duration(x), step: () => stepText(x) };
  return [texts[kind]?.() ?? valueText(x, kind), steps === null ? "" : stepText(steps)].filter(Boolean).join(" · ");
}

function xTick(tick, kind, step) {
  if (kind === "elapsed") return tick ? duration(tick) : "start";
  if (kind !== "time") return tickText(tick, "count");
  const at = new Date(tick * 1000);
  if (step >= 86400) return at.toLocaleDateString([], { month: "short", day: "numeric" });
  return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(step < 60 ? { second: "2-digit" } : {}), hourCycle: "h23" });
}

function incrementsOf(kind) {
  if (kind === "time" || kind === "elapsed") return [1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
  return [1, 2, 5].flatMap((unit) => Array.from({ length: 13 }, (_, power) => unit * 10 ** power)).sort((a, b) => a - b);
}
