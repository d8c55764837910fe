// Keyboard shortcuts: a key clicks the element that names it in data-key, such as `data-key="g o"`. Off while typing.
import { actions, focusedRow, move, open, select } from "./rows.js";

const PREFIX_MS = 1500;
const MOVES = { j: () => move(1), k: () => move(-1), x: select, ".": actions };
let prefix = "";
let timer = null;

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.altKey) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    press("/");
    return;
  }
  if (event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") escape(event); // also leaves a field, so that shortcuts work again
  else if (isTyping(event.target)) return;
  else if (event.key === "Enter" && event.target === focusedRow()) open();
  else if (handle(event.key)) event.preventDefault();
});

function handle(key) {
  const keys = prefix + key;
  forget();
  if (key === "g" && keys === "g") {
    prefix = "g ";
    timer = setTimeout(forget, PREFIX_MS);
    return true;
  }
  if (press(keys)) return true;
  if (MOVES[keys]) MOVES[keys]();
  return Boolean(MOVES[keys]);
}

function press(keys) {
  const found = [...(focusedRow()?.querySelectorAll("[data-key]") ?? []), ...document.querySelectorAll("[data-key]")];
  const target = found.find((element) => element.dataset.key === keys && element.checkVisibility());
  target?.click();
  if (target?.matches("summary")) target.parentElement.querySelector("a, button, input")?.focus();
  return Boolean(target);
}

function escape(event) {
  if (event.target.closest(".drawer, .menu[open]")) return;
  if (event.target.matches("body, main, .flash") || focusedRow()) press("Escape");
  else event.target.blur();
}

function forget() {
  clearTimeout(timer);
  prefix = "";
}

// A field of a dialog that just closed keeps the focus until the next frame.
function isTyping(element) {
  if (!element.checkVisibility()) return false;
  return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
}
