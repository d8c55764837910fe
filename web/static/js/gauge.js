// Moves a gauge's band and needle with the live points, as web/overview/balance.py does.
import { onPoints, points } from "./points.js";

const WIDTH = 200;

export function gauge(element) {
  const part = (name) => element.querySelector(`[data-part="${name}"]`);
  const place = (ratio) => Math.min(WIDTH, Math.max(0, ratio * 100));
  onPoints(() => {
    const { demand, low, high, ratio } = points.at(-1).values;
    element.toggleAttribute("hidden", !demand);
    if (!demand) return;
    part("band").setAttribute("x", place(low / demand));
    part("band").setAttribute("width", place(high / demand) - place(low / demand));
    part("needle").setAttribute("x", place(ratio ?? 0) - 1);
  });
}
