// Follows a log: fetches new text and scrolls to the end unless the user has scrolled up.
import { isPolling } from "./polling.js";

const EVERY_MS = 1000;
const MAX_CHARS = 400_000;

export function tail(element) {
  let end = null;
  const look = async () => {
    if (!element.isConnected) return;
    try {
      if (!isPolling()) return;
      const more = end === null ? "" : `&after=${end}`;
      const answer = await fetch(element.dataset.from + more);
      if (answer.ok) append(await answer.json());
    } catch {
      element.dataset.state = "lost"; // the next request retries
    } finally {
      setTimeout(look, EVERY_MS);
    }
  };
  const append = (found) => {
    delete element.dataset.state;
    const isAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - 4;
    if (end !== null && found.end < end) element.textContent = "";
    if (found.text) element.append(found.text);
    if (element.textContent.length > MAX_CHARS) element.textContent = element.textContent.slice(-MAX_CHARS / 2);
    end = found.end;
    if (isAtEnd) element.scrollTop = element.scrollHeight;
  };
  look();
}
