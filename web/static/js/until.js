// Shows future times as the time until then, and past ones with their own text.
import { duration } from "./formats.js";

const STEP_MS = 1000;

export function until(element) {
  const show = () => {
    if (!element.isConnected) {
      clearInterval(timer);
      return;
    }
    const at = Number(element.dataset.at);
    const left = at - Date.now() / 1000;
    const moment = new Date(at * 1000);
    element.dateTime = moment.toISOString();
    element.title = moment.toLocaleString();
    element.textContent = left > 0 ? duration(Math.max(1, Math.round(left))) : (element.dataset.over ?? "now");
    element.toggleAttribute("data-soon", left < 60);
  };
  const timer = setInterval(show, STEP_MS);
  show();
}
