// Command palette: loads its entries when it opens and filters them while typing. If the server has more entries, such
// as thousands of nodes, each input also queries the server.
import { root } from "./address.js";

const SHOWN = 12;
const ASK_MS = 150;

let load = null;

// Fills the dialog, which is open.
export function open(dialog) {
  load ??= attached(dialog);
  load();
}

// Attaches the palette to its dialog. Returns the function that loads the entries.
function attached(dialog) {
  const input = dialog.querySelector("input");
  const list = dialog.querySelector('[role="listbox"]');
  let entries = [];
  let found = [];
  let chosen = 0;
  let isWhole = true;
  let isAsking = false;
  let timer = null;

  const fetchEntries = async () => {
    say("Loading…");
    try {
      const answer = await fetch(dialog.dataset.source);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      ({ entries, is_whole: isWhole } = await answer.json());
      typed();
    } catch (problem) {
      say(`Loading failed: ${problem.message}`);
    }
  };

  const typed = () => {
    clearTimeout(timer);
    isAsking = !isWhole && input.value.trim() !== "";
    if (isAsking) timer = setTimeout(ask, ASK_MS);
    show();
  };

  const ask = async () => {
    const text = input.value;
    try {
      const answer = await fetch(`${dialog.dataset.source}?q=${encodeURIComponent(text)}`);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const more = (await answer.json()).entries;
      if (input.value !== text) return; // outdated response
      const known = new Set(entries.map(name));
      entries = entries.concat(more.filter((entry) => !known.has(name(entry))));
      isAsking = false;
      show(found[chosen]);
    } catch (problem) {
      if (input.value === text && !found.length) say(`Loading failed: ${problem.message}`);
    }
  };

  // previous: entry that stays selected if it still matches.
  const show = (previous) => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = entries
      .map((entry) => ({ entry, score: score(entry, words) }))
      .filter(({ score }) => score >= 0)
      .sort((a, b) => b.score - a.score)
      .slice(0, SHOWN)
      .map(({ entry }) => entry);
    chosen = Math.max(0, found.indexOf(previous));
    if (found.length) list.replaceChildren(...found.map(option));
    else say(isAsking ? "Searching…" : "No matches");
    mark();
  };

  const say = (text) => {
    list.replaceChildren(element("li", { className: "palette-empty", textContent: text }));
  };

  const mark = () => {
    [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === chosen)));
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
    if (found.length) input.setAttribute("aria-activedescendant", `palette-${chosen}`);
    else input.removeAttribute("aria-activedescendant");
  };

  const go = (entry) => {
    dialog.close();
    const control = entry.press && document.querySelector(`[data-key="${CSS.escape(entry.press)}"]`);
    if (control) control.click();
    else if (entry.href) location.assign(root + entry.href);
  };

  input.addEventListener("input", typed);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      chosen = (chosen + step + found.length) % found.length;
      mark();
    } else if (event.key === "Enter" && found[chosen]) {
      event.preventDefault();
      go(found[chosen]);
    }
  });
  list.addEventListener("click", (event) => {
    const place = [...list.children].indexOf(event.target.closest("li"));
    if (found[place]) go(found[place]);
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => (input.value = ""));
  return fetchEntries;
}

const element = (tag, properties) => Object.assign(document.createElement(tag), properties);

function name(entry) {
  return `${entry.group} ${entry.href} ${entry.label}`;
}

function option(entry, place) {
  const item = element("li", { id: `palette-${place}`, role: "option" });
  for (const [name, text] of [["palette-group", entry.group], ["palette-label", entry.label], ["palette-hint", entry.hint]])
    item.append(element("span", { className: name, textContent: text }));
  if (entry.keys) item.append(element("kbd", { textContent: entry.keys }));
  return item;
}

// Scores an entry as web/search/palette.py does; -1 when a word is missing. A word may leave out letters of the label.
function score(entry, words) {
  const label = entry.label.toLowerCase();
  const all = `${label} ${entry.group} ${entry.hint}`.toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (label.startsWith(word)) sum += 8;
    else if (label.includes(` ${word}`)) sum += 6;
    else if (label.includes(word)) sum += 4;
    else if (all.includes(word)) sum += 2;
    else if (word.length < 3 || !fuzzy(word).test(label)) return -1;
  }
  return sum;
}

function fuzzy(word) {
  return new RegExp(`\\b${[...word].map((letter) => letter.replace(/[^\p{L}\p{N}]/u, "\\$&")).join(".{0,6}?")}`);
}
