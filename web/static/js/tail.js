// Follows a log: fetches what was added since it last looked, and stays at the end unless the reader went up.
import { isReading } from "./again.js";

const EVERY_MS = 1000;
const KEPT_CHARS = 400_000;

export function tail(element) {
  let end = null;
  const look = async () => {
    if (!element.isConnected) return;
    try {
      if (!isReading()) return;
      const more = end === null ? "" : `&after=${end}`;
      const answer = await fetch(element.dataset.from + more);
      if (answer.ok) append(await answer.json());
    } catch {
      element.dataset.state = "lost"; // the next look finds it again
    } finally {
      setTimeout(look, EVERY_MS);
    }
  };
  const append = (found) => {
    delete element.dataset.state;
    const isAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - 4;
    if (end !== null && found.end < end) element.textContent = "";
    if (found.text) element.append(found.text);
    if (element.textContent.length > KEPT_CHARS) element.textContent = element.textContent.slice(-KEPT_CHARS / 2);
    end = found.end;
    if (isAtEnd) element.scrollTop = element.scrollHeight;
  };
  look();
}
