// Formats numbers as web/components/formats.py does.
const NARROW = "\u202f";
const MISSING = "\u2013";
const NEARLY_ALL = 0.9995; // share from which one decimal of per cent rounds to 100

const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "\u2212");

export function valueText(value, kind) {
  if ((value ?? null) === null) return MISSING;
  if (kind === "reward") return grouped(value, 2);
  if (kind === "figure") return figure(value);
  const isNearlyAll = value >= NEARLY_ALL && value < 1;
  if ((kind === "share" || kind === "percent") && isNearlyAll) return `>99.9${NARROW}%`;
  if (kind === "share") return `${figure(value * 100)}${NARROW}%`;
  if (kind === "seconds") return seconds(value);
  if (kind === "ratio") return `${grouped(value, 2)}${NARROW}\u00d7`;
  if (kind === "dollars") return dollars(value);
  if (kind === "percent" && value > 0 && value < 0.0005) return `<0.1${NARROW}%`;
  if (kind === "percent") return `${grouped(value * 100, (Math.abs(value) > 0 && Math.abs(value) < 0.01) || (value > 0.99 && value < 1) ? 1 : 0)}${NARROW}%`;
  if (kind === "count") return Math.abs(value) >= 1e6 ? `${grouped(value / 1e6, 2)}${NARROW}M` : grouped(value, 0);
  if (kind !== "rate") return `${figure(value)}${NARROW}${value === 1 && !kind.includes("/") ? kind.replace(/s$/, "") : kind}`;
  if (value === 0) return "0";
  return grouped(value, Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0);
}

const SUFFIXES = Object.entries({ k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15 });
const ROUNDS_UP = 0.9995; // share of a unit from which three significant digits round to the whole unit

function figure(value) {
  return signed(value).replaceAll("-", "\u2212");
}

function signed(value) {
  const size = Math.abs(value);
  if (size < 1e3 && Number.isInteger(value)) return String(value);
  if (size >= 0.001 && size < ROUNDS_UP * 1e3) return value.toPrecision(3);
  const suffix = SUFFIXES.find(([, unit]) => size / (ROUNDS_UP * unit) >= 1 && size / (ROUNDS_UP * unit) < 1e3);
  if (suffix) return (value / suffix[1]).toPrecision(3) + suffix[0];
  return value.toExponential(2).replace("+", "");
}

function seconds(value) {
  if (Math.abs(value) >= 600) return duration(value);
  if (Math.abs(value) < ROUNDS_UP && value) return `${figure(value * 1000)}${NARROW}ms`;
  return `${figure(value)}${NARROW}s`;
}

export function tickText(value, kind) {
  if (kind === "percent" || kind === "share") return `${short(value * 100)}%`;
  if (value && Math.abs(value) < 0.001) return figure(value);
  if (Math.abs(value) >= 1e6) return figure(value);
  if (Math.abs(value) >= 10000) return `${short(value / 1000)}k`;
  return short(value).replace("-", "\u2212");
}

function dollars(value) {
  if (value > 0 && value < 0.0001) return "<$0.0001";
  if (value > 0 && value < 0.1) return `$${Number(value.toPrecision(2))}`;
  return `$${grouped(value, value < 1000 ? 2 : 0)}`;
}

export function duration(seconds) {
  if (seconds > 0 && seconds < 0.0995) return `${(seconds * 1000).toFixed(1)}${NARROW}ms`;
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)}${NARROW}s`;
  const whole = Math.round(seconds);
  for (const [size, unit, lowerSize, lower] of [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / lowerSize);
      const larger = `${Math.floor(whole / size)}${NARROW}${unit}`;
      return rest ? `${larger} ${rest}${NARROW}${lower}` : larger;
    }
  }
  return `${whole}${NARROW}s`;
}

// Shortens a launch id (a ULID) to its beginning, the time, and its end, which distinguishes it from similar ids.
export function nodeName(name) {
  return /^[0-9A-HJKMNP-TV-Z]{26}$/.test(name) ? `${name.slice(0, 4)}\u2026${name.slice(-6)}` : name;
}

export function lagText(lag) {
  if (lag === undefined) return "absent";
  return lag ? `${lag} behind` : "current";
}

const short = (value) => String(Number(value.toPrecision(6)));
