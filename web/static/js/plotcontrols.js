// Settings of the page's charts, in its address: x axis, range, logarithm, smoothing and hidden lines.
import { changeAddress } from "./address.js";

const query = new URLSearchParams(location.search);
const listeners = new Set();
const isCut = query.has("from") && ["time", null].includes(query.get("x")); // the server sent this range only

export const settings = {
  x: query.get("x"), // null: the first kind of each table
  zoom: null, // { kind, from, to } of all charts
  isLog: query.has("log"),
  smoothing: Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0)),
  hidden: new Set((query.get("hide") ?? "").split(",").filter(Boolean)),
};
if (query.get("x") && Number(query.get("to")) > Number(query.get("from")))
  settings.zoom = { kind: query.get("x"), from: Number(query.get("from")), to: Number(query.get("to")) };

export function onSettings(listener) {
  listeners.add(listener);
}

export function change(changes) {
  Object.assign(settings, changes);
  const { x, zoom, isLog, smoothing, hidden } = settings;
  const wanted = { x: zoom?.kind ?? x, log: isLog ? 1 : null, smooth: smoothing || null, hide: [...hidden].join() || null };
  if (zoom || !isCut) Object.assign(wanted, { from: rounded(zoom?.from), to: rounded(zoom?.to) });
  if (zoom?.kind === "time") wanted.range = null;
  changeAddress(wanted);
  listeners.forEach((listener) => listener());
}

// Shows the whole range again.
export function resetZoom() {
  change({ zoom: null });
  if (!isCut) return;
  changeAddress({ from: null, to: null });
  location.reload();
}

const rounded = (value) => (value === undefined ? null : Math.round(value * 1000) / 1000);

// Row of controls for the charts of a page.
export function plotcontrols(row) {
  const slider = row.querySelector("[data-smooth]");
  const show = () => {
    for (const button of row.querySelectorAll("[data-x]"))
      button.setAttribute("aria-pressed", String(button.dataset.x === (settings.x ?? row.dataset.first)));
    row.querySelector("[data-log]").setAttribute("aria-pressed", String(settings.isLog));
    row.querySelector("[data-reset]").hidden = !settings.zoom && !isCut;
    slider.value = settings.smoothing;
    row.querySelector("output").textContent = settings.smoothing || "off";
  };
  row.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button?.dataset.x) change({ x: button.dataset.x, zoom: null });
    else if (button?.matches("[data-log]")) change({ isLog: !settings.isLog });
    else if (button) resetZoom();
  });
  slider.addEventListener("input", () => change({ smoothing: Number(slider.value) }));
  onSettings(show);
  show();
}
