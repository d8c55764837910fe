// Attaches behaviours to elements with data-behavior, at load and after every swap.
import { onReplaced } from "./address.js";
import { age } from "./age.js";
import { dialog } from "./dialog.js";
import { focusFlash } from "./focus.js";
import { longpress } from "./longpress.js";
import "./keys.js";
import { live, pause } from "./live.js";
import { menu } from "./menu.js";
import { choose } from "./nodes.js";
import { palette } from "./palette.js";
import { theme } from "./theme.js";
import { ago, until } from "./times.js";
import "./typed.js";

// Behaviours of most pages; the others are loaded from the file of their name with the first element that uses them.
const behaviors = { age, ago, choose, dialog, live, longpress, menu, palette, pause, theme, until, focusFlash };
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

attach(document).finally(() => document.documentElement.classList.add("has-script"));
onReplaced(() => attach(document));
