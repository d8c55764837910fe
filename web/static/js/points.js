// The points that the page's charts draw: one policy, oldest first. Begins with what the server put into the page.
const KEPT = 4000;
const listeners = new Set();
const holder = document.getElementById("points");
const given = holder ? JSON.parse(holder.textContent) : { isLive: false, policy: "", values: [], points: [] };

// Each: { sequence, at, values: {name: number or null}, lags: {node: versions} }; values of the policy and the fleet.
export const points = given.points.map(unpacked).filter(Boolean);

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

function unpacked([sequence, at, policies, fleet]) {
  const own = policies[given.policy];
  if (!own) return null;
  const values = Object.fromEntries(given.values.map((name, place) => [name, own.v[place]]));
  given.fleetValues?.forEach((name, place) => (values[name] = fleet[place]));
  return { sequence, at, values, lags: own.l };
}
