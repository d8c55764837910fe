// Tables behind the page's charts: columns of numbers as web/charts/tables.py sends them. The live feed appends rows.
import { dispatch, onReplaced, root } from "./address.js";

const MAX_ROWS = 4000;
const FETCH_EVERY_MS = 2000;
const tables = new Map(); // by id; null while the page has no such table
const listeners = new Set();
let timer = null;
let refining = null;

// Returns a table: { kinds, length, columns, lags, annotations, range, end }, or null.
export function tableOf(id) {
  if (!tables.has(id)) tables.set(id, parsed(document.getElementById(`table-${id}`)));
  return tables.get(id);
}

export function onTables(listener) {
  listeners.add(listener);
}

// Returns the newest sequence that the page shows: of its last live point, or of the report it was rendered from.
export function shownSequence(rendered) {
  const table = tableOf("points");
  return table?.isLive && table.length ? table.columns.sequence.at(-1) : rendered;
}

// Appends points of live frames: [sequence, at, {policy: {v: values, l: lags}}, fleet values].
export function addPoints(rows) {
  const table = tableOf("points");
  if (!table?.isLive) return;
  const newer = rows.filter(([sequence, , policies]) => sequence > shownSequence(0) && policies[table.policy]);
  for (const [sequence, at, policies, fleet] of newer) {
    const own = policies[table.policy];
    const row = { sequence, at };
    table.values.forEach((name, place) => (row[name] = own.v[place]));
    table.fleetValues.forEach((name, place) => (row[name] = fleet[place]));
    append(table, row, own.l);
  }
  if (newer.length) tell();
}

export function addAnnotations(rows) {
  const table = tableOf("points");
  const newest = table?.annotations?.at(-1)?.[0] ?? -1;
  if (table?.isLive) table.annotations.push(...rows.filter(([number]) => number > newest));
}

// Converts a place on one kind of x axis to another; null beyond the rows, and without such a column.
export function convert(table, from, to, value) {
  if (from === to || value === null) return value;
  const [xs, ys] = [from, to].map((kind) => table.columns[table.kinds[kind]]);
  if (!xs || !ys) return null;
  const next = xs.findIndex((x) => x >= value);
  if (next < 0 || (next === 0 && xs[0] !== value)) return null;
  if (next === 0 || xs[next] === value) return ys[next];
  const share = (value - xs[next - 1]) / (xs[next] - xs[next - 1]);
  return ys[next - 1] + share * (ys[next] - ys[next - 1]);
}

function append(table, row, lags = {}) {
  for (const [name, column] of Object.entries(table.columns)) column.push(row[name] ?? null);
  for (const name of Object.keys(lags)) table.lags[name] ??= Array(table.length).fill(null);
  for (const [name, column] of Object.entries(table.lags)) column.push(lags[name] ?? null);
  table.length += 1;
  if (table.length <= MAX_ROWS) return;
  for (const column of Object.values({ ...table.columns, ...table.lags })) column.shift();
  table.length -= 1;
}

const tell = () => listeners.forEach((listener) => listener());

function parsed(holder) {
  return holder && { ...unpacked(JSON.parse(holder.textContent)), text: holder.textContent };
}

function unpacked(sent) {
  const every = (columns) => Object.fromEntries(Object.entries(columns).map(([name, packed]) => [name, column(packed)]));
  const columns = { ...every(sent.columns), at: summed(column(sent.at)).map((at) => at / 100) };
  if (sent.sequence) columns.sequence = summed(column(sent.sequence));
  return { ...sent, kinds: Object.fromEntries(sent.kinds), columns, lags: every(sent.lags ?? {}), length: columns.at.length };
}

// Expands a run-length encoded column: items are a value or `[value, times]`.
function column(packed) {
  return packed.flatMap((item) => (Array.isArray(item) ? Array(item[1]).fill(item[0]) : [item]));
}

function summed(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

// Fetches rows of the tables with a source: those after the last, or those between two times.
async function fetchRows(from = null, to = null) {
  for (const table of [...tables.values()].filter((known) => known?.source)) {
    const last = table.columns.at.at(-1) ?? 0;
    const answer = await fetch(`${root}${table.source}&from=${from ?? last + 0.01}&to=${to ?? last + 1e6}`);
    if (!answer.ok) continue; // the next step repeats it
    const more = unpacked(await answer.json());
    if (Object.keys(more.columns).some((name) => !table.columns[name]))
      dispatch("new-columns");
    else if (more.length) merge(table, more);
  }
}

// Puts rows into a table, instead of those between the first and the last of them.
function merge(table, more) {
  const { at } = table.columns;
  const [first, last] = [more.columns.at[0], more.columns.at.at(-1)];
  const begin = at.findIndex((time) => time >= first);
  const end = at.findIndex((time) => time > last);
  const [before, after] = [begin < 0 ? at.length : begin, end < 0 ? at.length : end];
  for (const [name, column] of Object.entries(table.columns))
    table.columns[name] = [...column.slice(0, before), ...(more.columns[name] ?? more.columns.at.map(() => null)), ...column.slice(after)];
  table.length = table.columns.at.length;
  tell();
}

// Fetches the rows between two places of an axis, where a table has a part of them only.
export function refine({ kind, from, to }) {
  clearTimeout(refining);
  refining = setTimeout(() => {
    const table = [...tables.values()].find((known) => known?.source && known.thinned && known.kinds[kind]);
    if (!table) return;
    const { at } = table.columns;
    fetchRows(convert(table, kind, "time", from) ?? at[0], convert(table, kind, "time", to) ?? at.at(-1));
  }, 300);
}

document.addEventListener("changed-training", () => {
  timer ??= setTimeout(() => {
    timer = null;
    fetchRows();
  }, FETCH_EVERY_MS);
});
onReplaced(refresh);

// Reads the tables that a swap replaced.
function refresh() {
  for (const [id, table] of tables) {
    const holder = document.getElementById(`table-${id}`);
    if (holder?.textContent !== table?.text) tables.delete(id);
  }
  tell();
}
