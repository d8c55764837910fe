// Reasons inside the gaps of a chart: stretches without values.
import { convert } from "./tables.js";

const NEAR_S = 30; // time before a gap in which its cause is looked for
const SHORTEST_PX = 6;
const CAUSES = ["decision", "loss"]; // kinds of annotations that explain a gap
const FAINT = 0.07;

// Returns the gaps of the drawn columns: ends and reason. reason: why reported rows lack values.
export function gapsOf({ xs, values, kind, table }, reason) {
  const isMissing = (row) => values.every((column) => (column[row] ?? null) === null);
  const gaps = [];
  for (let row = 0; row < xs.length; row += 1) {
    if (!isMissing(row)) continue;
    const first = row;
    while (row + 1 < xs.length && isMissing(row + 1)) row += 1;
    const [from, to] = [xs[Math.max(0, first - 1)], xs[Math.min(xs.length - 1, row + 1)]];
    const isReported = table.columns[table.kinds[kind]].includes(xs[first]);
    gaps.push({ from, to, text: [isReported ? reason : "No report", causeOf(table, kind, from, to)].filter(Boolean).join(" \u00b7 ") });
  }
  return gaps;
}

// Returns the name of the last annotation that may explain a gap, such as "Kill switch".
function causeOf(table, kind, from, to) {
  const [begin, end] = [from, to].map((x) => convert(table, kind, "time", x));
  const causes = (table.annotations ?? []).filter(([, at, style]) => CAUSES.includes(style) && at >= begin - NEAR_S && at <= end);
  return causes.at(-1)?.[3].split(/[.:] /)[0];
}

// Shades the gaps and writes their reasons into them, as far as they fit.
export function drawGaps(u, columns, reason, ink) {
  const { left, top, width, height } = u.bbox;
  const { ctx } = u;
  ctx.save();
  ctx.fillStyle = ink;
  ctx.textAlign = "center";
  ctx.font = u.axes[0].font[0];
  for (const { from, to, text } of gapsOf(columns, reason)) {
    const [x0, x1] = [from, to].map((x) => Math.min(left + width, Math.max(left, u.valToPos(x, "x", true))));
    if (x1 - x0 < SHORTEST_PX * uPlot.pxRatio) continue;
    ctx.globalAlpha = FAINT;
    ctx.fillRect(x0, top, x1 - x0, height);
    ctx.globalAlpha = 1;
    const words = text.split(" ");
    while (words.length && ctx.measureText(`${words.join(" ")}…`).width > x1 - x0) words.pop();
    const shown = words.join(" ");
    if (shown) ctx.fillText(shown === text ? text : `${shown}…`, (x0 + x1) / 2, top + height / 2);
  }
  ctx.restore();
}
