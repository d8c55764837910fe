// Shows past times as the time since then, and future ones as the time until then.
import { duration } from "./formats.js";

const STEP_MS = 1000;

export const ago = (element) => ticking(element, (left) => (left > -1.5 ? "now" : `${rounded(-left)} ago`));

// A time that has passed has the text of its data-over.
export const until = (element) =>
  ticking(element, (left) => {
    element.toggleAttribute("data-soon", left < 60);
    return left > 0 ? rounded(left) : (element.dataset.over ?? "now");
  });

const rounded = (seconds) => duration(Math.max(1, Math.round(seconds)));

function ticking(element, text) {
  const show = () => {
    if (!element.isConnected) clearInterval(timer);
    const at = Number(element.dataset.at); // a morph may change the time of the element
    const moment = new Date(at * 1000);
    element.dateTime = moment.toISOString();
    element.title = moment.toLocaleString();
    element.textContent = text(at - Date.now() / 1000);
  };
  const timer = setInterval(show, STEP_MS);
  show();
}
