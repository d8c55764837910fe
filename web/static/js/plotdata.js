// Columns that a chart draws: the values of its lines over one kind of x axis.
import { tableOf } from "./tables.js";

const MAX_STRIPS = 8;
const MAX_GAP_S = { points: 15, steps: 90 }; // longest distance between two rows that a line always connects
const MAX_GAP_INTERVALS = 3; // the same, in the larger of the distances before and after it

// Returns { kind, table, lines, xs, values, drawn }: drawn are the values as plotted, such as stacked shares.
export function columnsOf(options, wanted) {
  const ids = new Set([...options.lines.map(({ table }) => table), options.table]);
  const tables = [...ids].map((id) => [id, tableOf(id)]).filter(([, table]) => table);
  const known = tables.map(([, table]) => table);
  if (!known.length) return null;
  const kinds = Object.keys(known[0].kinds).filter((kind) => known.every((table) => table.kinds[kind]));
  const kind = kinds.includes(wanted) ? wanted : kinds[0];
  const table = tableOf(options.table) ?? known[0];
  const lines = options.form === "strips" ? strips(table, options) : options.lines;
  const parts = tables.map(([id, own]) => over(own, kind, lines.filter((line) => line.table === id), MAX_GAP_S[id.startsWith("points") ? "points" : "steps"]));
  const [xs, ...values] = parts.length === 1 ? parts[0] : globalThis.uPlot.join(parts.filter((part) => part.length > 1));
  if (options.form !== "shares") return { kind, table, lines, xs, values, drawn: values };
  return { kind, table, lines, xs, values: shares(values), drawn: stacked(values), latest: lines.some(({ isTotal }) => isTotal) ? whole(values) : null };
}

// Returns the exponential mean of a column, corrected at its begin. weight: of the mean so far.
export function smoothed(values, weight) {
  let [mean, norm] = [0, 0];
  return values.map((value) => {
    if ((value ?? null) === null) return value;
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

// Returns a line for each node: those of the newest row first, in the order of their largest lag.
function strips(table, { table: id, format, isWhole }) {
  const rank = ([name, lags]) => [lags.at(-1) === null ? 1 : 0, -Math.max(...lags), name];
  const ranked = Object.entries(table.lags).map((entry) => [rank(entry), entry[0]]);
  ranked.sort(([a], [b]) => a[0] - b[0] || a[1] - b[1] || (a[2] < b[2] ? -1 : 1));
  const shown = ranked.filter(([[isLost]], place) => isWhole || (!isLost && place < MAX_STRIPS));
  return (shown.length ? shown : ranked.slice(0, MAX_STRIPS)).map(([, name]) => ({ value: name, label: name, table: id, format }));
}

// Returns [xs, values of each line]. Of rows at one x, the last value counts; of totals, the sum of differences.
function over(table, kind, lines, longest) {
  const xs = table.columns[table.kinds[kind]];
  const columns = lines.map(({ value }) => table.columns[value] ?? table.lags[value] ?? []);
  const end = table.end ?? table.columns.at.at(-1);
  const start = table.range === null ? -Infinity : end - table.range;
  const isTime = kind === "time" || kind === "elapsed";
  const near = (row) => Math.max(xs[row - 1] - xs[row - 2] || 0, xs[row + 1] - xs[row] || 0);
  const isGap = (row, distance) => isTime && distance > Math.max(longest, MAX_GAP_INTERVALS * near(row));
  const found = [[], ...lines.map(() => [])];
  let before = null;
  for (let row = 0; row < table.length; row++) {
    const x = xs[row];
    if (x === null || x < before || table.columns.at[row] < start || table.columns.at[row] > end) continue;
    if (before !== null && isGap(row, x - before)) found.forEach((column, place) => column.push(place ? null : (x + before) / 2));
    const isSame = x === before;
    lines.forEach(({ isTotal }, place) => {
      const column = found[place + 1];
      let value = columns[place][row] ?? null;
      if (isTotal) value = difference(value, columns[place][row - 1]);
      if (!isSame) column.push(value);
      else if (isTotal) column[column.length - 1] += value;
      else if (value !== null) column[column.length - 1] = value;
    });
    if (!isSame) found[0].push(x);
    before = x;
  }
  return found;
}

function difference(value, previous) {
  return value === null || (previous ?? null) === null ? null : Math.max(0, value - previous);
}

// Returns the values of each row as shares of their sum.
function shares(values) {
  const sums = values[0].map((_, place) => values.reduce((sum, column) => sum + (column[place] ?? 0), 0));
  return values.map((column) => column.map((value, place) => (sums[place] ? (value ?? 0) / sums[place] : null)));
}

// Returns the share of each column over all rows.
function whole(values) {
  const sums = values.map((column) => column.reduce((sum, value) => sum + (value ?? 0), 0));
  const total = sums.reduce((sum, value) => sum + value, 0);
  return sums.map((sum) => (total ? sum / total : null));
}

// Returns the upper ends of stacked shares, which add up to 1; null where all are zero.
function stacked(values) {
  const tops = values[0].map(() => 0);
  return shares(values).map((column) => column.map((value, place) => (value === null ? null : (tops[place] += value))));
}
