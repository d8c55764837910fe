// Attaches behaviours to the elements that ask for them, now and after every swap.
import { age } from "./age.js";
import { ago } from "./ago.js";
import { dialog } from "./dialog.js";
import { told } from "./focus.js";
import { here } from "./here.js";
import { hold } from "./hold.js";
import "./keys.js";
import { live, pause } from "./live.js";
import { menu } from "./menu.js";
import { choose } from "./nodes.js";
import { palette } from "./palette.js";
import { theme } from "./theme.js";

// What most pages need; any other behaviour is in the file of its name, and comes with the first element that asks.
const behaviors = { age, ago, choose, dialog, here, hold, live, menu, palette, pause, theme, told };
const attached = new WeakSet();

// The promise is kept when everything is attached; what is here already is attached at once.
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
document.addEventListener("htmx:after:swap", () => attach(document));
document.addEventListener("live-region", () => attach(document));
document.addEventListener("drawer-filled", () => attach(document));
