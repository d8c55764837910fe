// Columns that a chart draws: the values of its lines over one kind of x axis.
import { tableOf } from "./tables.js";

const MAX_STRIPS = 8;
const MAX_GAP_S = 90; // longest distance between two rows that a line connects
const MAX_GAP_INTERVALS = 5;

// Returns { kind, table, lines, xs, values, drawn }: drawn are the values as plotted, such as stacked shares.
export function columnsOf(options, wanted) {
  const tables = new Map(options.lines.map(({ table }) => [table, tableOf(table)]));
  tables.set(options.table, tableOf(options.table));
  const known = [...tables.values()].filter(Boolean);
  if (!known.length) return null;
  const kinds = Object.keys(known[0].kinds).filter((kind) => known.every((table) => table.kinds[kind]));
  const kind = kinds.includes(wanted) ? wanted : kinds[0];
  const table = tableOf(options.table) ?? known[0];
  const lines = options.form === "strips" ? strips(table, options) : options.lines;
  const parts = [...tables].map(([id, own]) => over(own, kind, lines.filter((line) => line.table === id)));
  const [xs, ...values] = parts.length === 1 ? parts[0] : globalThis.uPlot.join(parts.filter((part) => part.length > 1));
  return { kind, table, lines, xs, values, drawn: options.form === "shares" ? stacked(values) : values };
}

// Returns the exponential mean of a column, corrected at its begin. weight: of the mean so far.
export function smoothed(values, weight) {
  let [mean, norm] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return value;
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

// Returns [xs, values of each line]. Of several rows at one x, the last value counts; of totals, the sum of differences.
function over(table, kind, lines) {
  const xs = table.columns[table.kinds[kind]];
  const columns = lines.map(({ value }) => table.columns[value] ?? table.lags[value] ?? []);
  const end = table.end ?? table.columns.at.at(-1);
  const start = table.range === null ? -Infinity : end - table.range;
  const isTime = kind === "time" || kind === "elapsed";
  const gap = Math.max(MAX_GAP_S, (MAX_GAP_INTERVALS * (xs.at(-1) - xs[0])) / xs.length);
  const found = [[], ...lines.map(() => [])];
  let before = null;
  for (let row = 0; row < table.length; row++) {
    const x = xs[row];
    if (x === null || x < before || table.columns.at[row] < start || table.columns.at[row] > end) continue;
    if (isTime && before !== null && x - before > gap) found.forEach((column, place) => column.push(place ? null : (x + before) / 2));
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

// Returns the upper ends of stacked shares, which add up to 1; null where all are zero.
function stacked(values) {
  const sums = values[0].map((_, place) => values.reduce((sum, column) => sum + (column[place] ?? 0), 0));
  const tops = sums.map(() => 0);
  return values.map((column) => column.map((value, place) => (sums[place] ? (tops[place] += (value ?? 0) / sums[place]) : null)));
}
