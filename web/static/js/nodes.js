// Node table: row texts arrive over the page's WebSocket; the table is fetched again when its set of rows changes.
import { dispatch } from "./address.js";

const EVERY_MS = 5000;

export function nodes(section) {
  choose(section);
  let fetchedAt = 0;
  let timer = null;
  document.addEventListener("live-rows", ({ detail: members }) => {
    const shown = section.querySelector("[data-members]");
    if (!shown || shown.dataset.members === members || timer) return;
    timer = setTimeout(() => {
      timer = null;
      if (document.querySelector("dialog[open]")) return; // the next message repeats it
      fetchedAt = Date.now();
      dispatch("changed-nodes");
    }, Math.max(0, fetchedAt + EVERY_MS - Date.now()));
  });
}

// Keeps selected rows selected when the table is fetched again; the bar below shows their number.
function choose(form) {
  const chosen = new Set();
  const boxes = () => [...form.querySelectorAll('tbody input[type="checkbox"]')];
  const every = () => form.querySelector("[data-every]");
  const show = () => {
    const shown = boxes();
    for (const box of shown) box.checked = chosen.has(box.value);
    const count = shown.filter((box) => box.checked).length;
    const counter = form.querySelector('[data-part="chosen"]');
    if (!counter) return; // no row can be selected
    counter.textContent = `${count} selected`;
    form.toggleAttribute("data-choosing", count > 0);
    const all = every();
    if (!all) return;
    all.checked = count > 0 && count === shown.length;
    all.indeterminate = count > 0 && count < shown.length;
  };
  form.addEventListener("change", (event) => {
    const box = event.target;
    const changed = box.matches("[data-every]") ? boxes() : [box];
    for (const changedBox of changed) {
      if (box.checked) chosen.add(changedBox.value);
      else chosen.delete(changedBox.value);
    }
    show();
  });
  document.addEventListener("htmx:after:swap", show);
  show();
}
