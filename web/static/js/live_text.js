// Live texts: patches each element with data-live-text with the text of its key.
import { onReplaced } from "./address.js";

let index = null;

onReplaced(() => (index = null));

export function patchLiveTexts(liveTexts) {
  index ??= indexed();
  for (const [key, [text, tone]] of Object.entries(liveTexts)) {
    for (const element of index.get(key) ?? []) {
      if (element.dataset.shares !== undefined) setBar(element, text);
      else if (element.textContent !== text) element.textContent = text;
      if (element.dataset.tone !== tone) element.dataset.tone = tone;
    }
  }
}

// Sets a bar of shares: the widths of its parts are the percentages of the text, in order.
function setBar(element, text) {
  if (element.dataset.shares === text) return;
  element.dataset.shares = text;
  const shares = text.split(" ").map(Number);
  let x = 0;
  [...element.querySelectorAll("rect:not(.rest)")].forEach((part, place) => {
    const width = Math.max(0, Math.min(100 - x, shares[place] || 0));
    part.setAttribute("x", x);
    part.setAttribute("width", width);
    x += width;
  });
  const words = shares.map((share, place) => `${["busy", "blocked", "refresh"][place]} ${share} %`).join(", ");
  element.querySelector("title").textContent = text ? words : "not measured";
}

function indexed() {
  const elements = new Map();
  for (const element of document.querySelectorAll("[data-live-text]")) {
    const { liveText } = element.dataset;
    elements.set(liveText, [...(elements.get(liveText) ?? []), element]);
  }
  return elements;
}
