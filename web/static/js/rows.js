// Keyboard navigation through the rows of the page's tables, read again at each key press.
const CONTROLS = "a[href], button, summary";

const rows = () => [...document.querySelectorAll("main .table tbody tr")].filter((row) => row.offsetParent !== null);

export function focusedRow() {
  return document.activeElement?.closest("main .table tbody tr") ?? null;
}

export function move(step) {
  const all = rows();
  const current = all.indexOf(focusedRow());
  const next = current < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, current + step));
  const row = all[next];
  if (!row) return;
  row.tabIndex = -1;
  row.focus();
  row.scrollIntoView({ block: "nearest" });
}

export function open() {
  const row = focusedRow();
  (row?.querySelector("a.row-link") ?? row?.querySelector("th a[href], td:not(.actions) a[href]"))?.click();
}

export function select() {
  focusedRow()?.querySelector("input[type=checkbox]")?.click();
}

export function actions() {
  const row = focusedRow();
  (row?.querySelector(".actions")?.querySelector(CONTROLS) ?? row?.querySelector(CONTROLS))?.focus();
}
