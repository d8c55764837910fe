// The command palette: entries come from the server when it opens, typed letters choose among them.
const SHOWN = 12;

export function palette(dialog) {
  const input = dialog.querySelector("input");
  const list = dialog.querySelector('[role="listbox"]');
  const opener = document.querySelector("[data-palette]");
  let entries = [];
  let found = [];
  let chosen = 0;

  opener.addEventListener("click", async (event) => {
    event.preventDefault();
    dialog.showModal();
    input.value = "";
    say("Loading…");
    try {
      const answer = await fetch(dialog.dataset.source);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      entries = (await answer.json()).entries;
      show();
    } catch (problem) {
      say(`Nothing could be fetched: ${problem.message}`);
    }
  });

  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = entries
      .map((entry) => ({ entry, score: score(entry, words) }))
      .filter(({ score }) => score >= 0)
      .sort((a, b) => b.score - a.score)
      .slice(0, SHOWN)
      .map(({ entry }) => entry);
    chosen = 0;
    if (found.length) list.replaceChildren(...found.map(option));
    else say("Nothing is called that");
    mark();
  };

  const say = (text) => {
    const item = document.createElement("li");
    item.className = "palette-empty";
    item.textContent = text;
    list.replaceChildren(item);
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
    else if (entry.href) location.assign(entry.href);
  };

  input.addEventListener("input", show);
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
}

function option(entry, place) {
  const item = document.createElement("li");
  item.id = `palette-${place}`;
  item.setAttribute("role", "option");
  for (const [name, text] of [["palette-group", entry.group], ["palette-label", entry.label], ["palette-hint", entry.hint]]) {
    const span = document.createElement("span");
    span.className = name;
    span.textContent = text;
    item.append(span);
  }
  if (entry.keys) {
    const keys = document.createElement("kbd");
    keys.textContent = entry.keys;
    item.append(keys);
  }
  return item;
}

// Every word has to be there; those at the beginning of the label count most. -1 for what does not fit.
function score(entry, words) {
  const label = entry.label.toLowerCase();
  const all = `${label} ${entry.group} ${entry.hint}`.toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (!all.includes(word)) return -1;
    sum += label.startsWith(word) ? 3 : label.includes(` ${word}`) ? 2 : label.includes(word) ? 1 : 0;
  }
  return sum;
}
