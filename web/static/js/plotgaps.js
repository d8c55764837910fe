// Reasons inside the gaps of a chart: stretches without values, or without those of the line that its reason is about.
import { convert } from "./tables.js";

const NEAR_S = 30; // time before a gap in which its cause is looked for
const AFTER_S = 5; // time after a gap in which a cause is reported
const SHORTEST_PX = 6;
const LINE_PX = 14; // height of a line of text
const FAINT = 0.07;

// Returns the gaps of the drawn columns: their rows, ends, reason, and whether other lines go on. explained: { reason, reasonOf }: why
// reported rows lack values, and of which line; without it of all lines.
export function gapsOf({ xs, values, lines, kind, table }, { reason, reasonOf }) {
  const own = values.filter((_, place) => lines[place].value === reasonOf);
  const areMissing = (columns, row) => columns.every((column) => (column[row] ?? null) === null);
  const isMissing = (row) => areMissing(own.length ? own : values, row);
  const gaps = [];
  let reported = null;
  for (let row = 0; row < xs.length; row += 1) {
    if (!isMissing(row)) continue;
    reported ??= new Set(table.columns[table.kinds[kind]]);
    const [first, isReported] = [row, reported.has(xs[row])];
    while (row + 1 < xs.length && isMissing(row + 1) && reported.has(xs[row + 1]) === isReported) row += 1;
    const [from, to] = [xs[Math.max(0, first - 1)], xs[Math.min(xs.length - 1, row + 1)]];
    const text = (isReported && reason) || [isReported ? "No value" : "No report", causeOf(table, kind, from, to, isReported ? ["loss"] : ["loss", "decision"])].filter(Boolean).join(" \u00b7 ");
    gaps.push({ rows: [first, row], from, to, text, isPart: !areMissing(values, first) });
  }
  return gaps;
}

// Returns the name of the annotation that may explain a gap, such as "Kill switch": the last one before its end, or the
// first one after it.
function causeOf(table, kind, from, to, styles) {
  const [begin, end] = [from, to].map((x) => convert(table, kind, "time", x));
  const causes = (table.annotations ?? []).filter(([, at, style]) => styles.includes(style) && at >= begin - NEAR_S && at <= end + AFTER_S);
  return (causes.findLast(([, at]) => at <= end) ?? causes[0])?.[3].split(/[.:] /)[0];
}

// Shades the gaps and writes their reasons into them: in lines, or upwards where a word is wider than the gap.
export function drawGaps(u, columns, explained, [ink, paper]) {
  const { left, top, width, height } = u.bbox;
  const { ctx } = u;
  ctx.save();
  [ctx.fillStyle, ctx.strokeStyle, ctx.lineWidth] = [ink, paper, 4 * uPlot.pxRatio];
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.font = u.axes[0].font[0];
  for (const { from, to, text, isPart } of gapsOf(columns, explained)) {
    const [x0, x1] = [from, to].map((x) => Math.min(left + width, Math.max(left, u.valToPos(x, "x", true))));
    if (x1 - x0 < SHORTEST_PX * uPlot.pxRatio) continue;
    ctx.globalAlpha = FAINT;
    ctx.fillRect(x0, top, x1 - x0, height);
    ctx.globalAlpha = 1;
    writeReason(ctx, text, { x0, x1, top, height, isPart });
  }
  ctx.restore();
}

// Writes in the middle of a gap, or at its top if other lines go on in it.
function writeReason(ctx, text, { x0, x1, top, height, isPart }) {
  const [tall, room] = [LINE_PX * uPlot.pxRatio, x1 - x0 - 4 * uPlot.pxRatio];
  const lines = wrapped(ctx, text, room);
  if (lines.length * tall <= height && lines.every((line) => ctx.measureText(line).width <= room)) {
    const middle = isPart ? top + (lines.length * tall) / 2 : top + height / 2;
    lines.forEach((line, place) => write(ctx, line, (x0 + x1) / 2, middle + (place - (lines.length - 1) / 2) * tall));
  } else if (x1 - x0 >= tall) {
    ctx.save();
    ctx.translate((x0 + x1) / 2, top + height / 2);
    ctx.rotate(-Math.PI / 2);
    write(ctx, wrapped(ctx, text, height)[0], 0, 0);
    ctx.restore();
  }
}

// Writes a line of text that stays legible over lines.
function write(ctx, line, x, y) {
  ctx.strokeText(line, x, y);
  ctx.fillText(line, x, y);
}

// Returns a text in lines that are not wider than a width, as far as its words are not.
function wrapped(ctx, text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = [lines.at(-1), word].filter(Boolean).join(" ");
    if (!lines.at(-1) || ctx.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
