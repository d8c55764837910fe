// The table of nodes: its rows' texts come over the page's WebSocket, the table anew when other rows belong on it.
const EVERY_MS = 5000;
let fetchedAt = 0;
let timer = null;

const table = () => document.querySelector("[data-rows]");

// What the address of the WebSocket says of the table; nothing on pages without one.
export function watched() {
  const found = table();
  return found ? `&rows=${encodeURIComponent(found.dataset.rows)}` : "";
}

// members: names the rows that now belong on this page of the table, in their order.
export function membersAre(members) {
  const shown = table()?.querySelector("[data-members]");
  if (!shown || shown.dataset.members === members || timer) return;
  timer = setTimeout(() => {
    timer = null;
    if (document.querySelector("dialog[open]")) return; // the next rows say it again
    fetchedAt = Date.now();
    document.body.dispatchEvent(new CustomEvent("changed-nodes", { bubbles: true }));
  }, Math.max(0, fetchedAt + EVERY_MS - Date.now()));
}

// Chosen rows stay chosen when the table is fetched again; the bar below says how many there are.
export function choose(form) {
  const chosen = new Set();
  const boxes = () => [...form.querySelectorAll('tbody input[type="checkbox"]')];
  const every = () => form.querySelector("[data-every]");
  const show = () => {
    const shown = boxes();
    for (const box of shown) box.checked = chosen.has(box.value);
    const count = shown.filter((box) => box.checked).length;
    form.querySelector('[data-part="chosen"]').textContent = `${count} chosen`;
    form.toggleAttribute("data-choosing", count > 0);
    const all = every();
    if (!all) return;
    all.checked = count > 0 && count === shown.length;
    all.indeterminate = count > 0 && count < shown.length;
  };
  form.addEventListener("change", (event) => {
    const box = event.target;
    const changed = box.matches("[data-every]") ? boxes() : [box];
    for (const one of changed) {
      if (box.checked) chosen.add(one.value);
      else chosen.delete(one.value);
    }
    show();
  });
  document.addEventListener("htmx:after:swap", show);
  show();
}
