// Attaches behaviours to elements with data-behavior, at load and after every swap.
import { onReplaced } from "./address.js";
import { age } from "./age.js";
import { dialog } from "./dialog.js";
import { focusFlash } from "./focus.js";
import { longpress } from "./longpress.js";
import "./keys.js";
import { live, pause } from "./live.js";
import { menu } from "./menu.js";
import { ago, until } from "./times.js";

// Behaviours of most pages; the others are loaded from the file of their name with the first element that uses them.
const behaviors = { age, ago, dialog, live, longpress, menu, pause, until, focusFlash };
// Parts that a link of their name opens; their files are loaded by the first click.
const OPENED = ["palette", "drawer"];
const attached = new WeakSet();

// Resolves when all behaviours are attached; loaded ones are attached synchronously.
export function attach(root) {
  const elements = [...root.querySelectorAll("[data-behavior]")].filter((element) => !attached.has(element));
  return Promise.all(
    elements.map(async (element) => {
      attached.add(element);
      const name = element.dataset.behavior;
      const behavior = behaviors[name] ?? (await import(`./${name}.js`))[name];
      behavior(element);
    }),
  );
}

document.addEventListener("click", async (event) => {
  const name = OPENED.find((known) => event.target.closest(`[data-${known}]`));
  if (!name || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const part = document.getElementById(name);
  part.showModal?.(); // at once: what is typed next is for it
  (await import(`./${name}.js`)).open(part, event.target.closest(`[data-${name}]`));
});

// What is typed is kept from the first input on, and given back after a refusal.
if (document.cookie.includes("astraflow_typed=1")) import("./typed.js");
else {
  sessionStorage.removeItem("astraflow-typed");
  addEventListener("input", () => import("./typed.js"), { once: true });
}

attach(document).finally(() => document.documentElement.classList.add("has-script"));
onReplaced(() => attach(document));
