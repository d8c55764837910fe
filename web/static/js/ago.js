// Shows times as the time since then.
import { duration } from "./formats.js";

const STEP_MS = 1000;

export function ago(element) {
  const show = () => {
    if (!element.isConnected) {
      clearInterval(timer);
      return;
    }
    const at = Number(element.dataset.at); // a morph may change the time of the element
    const moment = new Date(at * 1000);
    const seconds = Date.now() / 1000 - at;
    element.dateTime = moment.toISOString();
    element.title = moment.toLocaleString();
    element.textContent = seconds < 1.5 ? "now" : `${duration(Math.max(1, Math.round(seconds)))} ago`;
  };
  const timer = setInterval(show, STEP_MS);
  show();
}
