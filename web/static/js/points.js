// Points of the page's charts: one policy, oldest first, starting with the points in the rendered page.
const MAX_POINTS = 4000;
const listeners = new Set();
const holder = document.getElementById("points");
const given = holder ? JSON.parse(holder.textContent) : { isLive: false, policy: "", at: [], columns: {}, lags: {} };

// Items: { sequence, at, values: {name: number or null}, lags: {node: versions} }; values of the policy and the fleet.
export const points = begun();

// Items: [ordinal, at, kind, text], oldest first.
export const annotations = given.annotations ?? [];

export function lastSequence() {
  return points.length ? points[points.length - 1].sequence : 0;
}

// Returns the newest sequence that the page shows: of its last live point, or of the report it was rendered from.
export function shownSequence(rendered) {
  return given.isLive && points.length ? lastSequence() : rendered;
}

export function addPoints(rows) {
  if (!given.isLive) return;
  let hasNew = false;
  for (const row of rows) {
    const point = row[0] > lastSequence() ? unpacked(row) : null;
    if (point) {
      points.push(point);
      hasNew = true;
    }
  }
  if (points.length > MAX_POINTS) points.splice(0, points.length - MAX_POINTS);
  if (hasNew) listeners.forEach((listener) => listener());
}

export function addAnnotations(rows) {
  const newest = annotations.at(-1)?.[0] ?? -1;
  if (given.isLive) annotations.push(...rows.filter(([ordinal]) => ordinal > newest));
}

export function onPoints(listener) {
  listeners.add(listener);
}

// Converts the columns of web/charts/chart_data.py to points.
function begun() {
  const sequences = summed(column(given.sequence ?? []));
  const columns = Object.entries(given.columns).map(([name, packed]) => [name, column(packed)]);
  const nodes = Object.entries(given.lags).map(([name, packed]) => [name, column(packed)]);
  return summed(column(given.at)).map((at, place) => ({
    sequence: sequences[place],
    at: at / 100,
    values: Object.fromEntries(columns.map(([name, numbers]) => [name, numbers[place]])),
    lags: Object.fromEntries(nodes.map(([name, lags]) => [name, lags[place]]).filter(([, lag]) => lag !== null)),
  }));
}

// Expands a run-length encoded column: items are a value or `[value, times]`.
function column(packed) {
  return packed.flatMap((item) => (Array.isArray(item) ? Array(item[1]).fill(item[0]) : [item]));
}

function summed(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

function unpacked([sequence, at, policies, fleet]) {
  const own = policies[given.policy];
  if (!own) return null;
  const values = Object.fromEntries(given.values.map((name, place) => [name, own.v[place]]));
  given.fleetValues.forEach((name, place) => (values[name] = fleet[place]));
  return { sequence, at, values, lags: own.l };
}
