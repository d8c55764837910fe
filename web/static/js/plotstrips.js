// Strips of nodes, one above the other, coloured by the lag of their weights.
import { lagText, nodeName } from "./formats.js";

// Returns the two axes: names at the left, lags at the cursor at the right. chart and shown: return what is drawn now.
export function axes(axis, chart, shown) {
  const at = () => chart()?.cursor.idx ?? null;
  const rows = { ...axis, grid: { show: false }, splits: () => shown().lines.map((_, row, { length }) => length - row - 0.5), size: 84, gap: 6 };
  const cut = (name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name);
  return [
    { ...rows, values: () => shown().lines.map(({ label }) => cut(nodeName(label))) },
    { ...rows, side: 1, size: 66, values: () => shown().values.map((lags) => lagText((at() === null ? lags.at(-1) : lags[at()]) ?? undefined)) },
  ];
}

export function draw(figure, u, { lines, values, xs }, limit) {
  const colours = [...figure.querySelectorAll(".swatch.lag")].map((swatch) => getComputedStyle(swatch).backgroundColor);
  const { left, top, width, height } = u.bbox;
  const tall = height / lines.length;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  values.forEach((lags, row) => {
    for (let begin = 0, end; begin < lags.length; begin = end) {
      for (end = begin + 1; end < lags.length && lags[end] === lags[begin]; ) end += 1;
      if ((lags[begin] ?? null) === null) continue;
      const level = lags[begin] === 0 ? 0 : lags[begin] <= limit ? 1 : 2;
      const [from, to] = [xs[begin], xs[Math.min(end, lags.length - 1)]].map((x) => u.valToPos(x, "x", true));
      u.ctx.fillStyle = colours[level];
      u.ctx.fillRect(from, top + tall * row + tall * (level === 1 ? 0.4 : 0.15), Math.max(1, to - from), tall * (level === 1 ? 0.45 : 0.7));
    }
  });
  u.ctx.restore();
}
