// Attaches behaviours to the elements that ask for them, now and after every swap.
import { age } from "./age.js";
import { ago } from "./ago.js";
import { balance } from "./balance.js";
import { chart } from "./chart.js";
import { dialog } from "./dialog.js";
import { drawer } from "./drawer.js";
import { gauge } from "./gauge.js";
import { here } from "./here.js";
import { heat } from "./heat.js";
import { hold } from "./hold.js";
import "./keys.js";
import { ladder } from "./ladder.js";
import { live, pause } from "./live.js";
import { menu } from "./menu.js";
import { choose } from "./nodes.js";
import { palette } from "./palette.js";
import { tail } from "./tail.js";
import { theme } from "./theme.js";
import { until } from "./until.js";

const behaviors = { age, ago, balance, chart, choose, dialog, drawer, gauge, heat, here, hold, ladder, live, menu, palette, pause, tail, theme, until };
const attached = new WeakSet();

export function attach(root) {
  for (const element of root.querySelectorAll("[data-behavior]")) {
    if (!attached.has(element)) {
      attached.add(element);
      behaviors[element.dataset.behavior](element);
    }
  }
}

document.documentElement.classList.add("has-script");
attach(document);
document.addEventListener("htmx:after:swap", () => attach(document));
document.addEventListener("live-region", () => attach(document));
document.addEventListener("drawer-filled", () => attach(document));
