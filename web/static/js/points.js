// The points that the page's charts draw: one policy, oldest first. Begins with what the server put into the page.
const KEPT = 4000;
const listeners = new Set();
const holder = document.getElementById("points");
const given = holder ? JSON.parse(holder.textContent) : { isLive: false, policy: "", at: [], columns: {}, lags: {} };

// Each: { sequence, at, values: {name: number or null}, lags: {node: versions} }; values of the policy and the fleet.
export const points = begun();

// Each: [ordinal, at, kind, text], oldest first.
export const pins = given.pins ?? [];

export function lastSequence() {
  return points.length ? points[points.length - 1].sequence : 0;
}

// What the page has of the live feed: up to its last live point, or to the report it was rendered from.
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
  if (points.length > KEPT) points.splice(0, points.length - KEPT);
  if (hasNew) listeners.forEach((listener) => listener());
}

export function addPins(rows) {
  const newest = pins.at(-1)?.[0] ?? -1;
  if (given.isLive) pins.push(...rows.filter(([ordinal]) => ordinal > newest));
}

export function onPoints(listener) {
  listeners.add(listener);
}

// The columns of web/present/page_points.py, as points.
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

// A value, or `[value, times]`.
function column(packed) {
  return packed.flatMap((one) => (Array.isArray(one) ? Array(one[1]).fill(one[0]) : [one]));
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
