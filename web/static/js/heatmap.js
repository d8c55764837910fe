// Heat map of nodes: one tab stop; arrows, Home, End and the pointer move the cursor, Enter and a click open the node.
import { root } from "./address.js";

const ASK_MS = 120;

export function heatmap(element) {
  const plot = element.querySelector(".heatmap-plot");
  const cursor = element.querySelector('[data-part="cursor"]');
  const words = element.querySelector('[data-part="words"]');
  let place = -1;
  let href = "";
  let timer = null;

  const facts = () => {
    const [across, count, side] = ["across", "count", "side"].map((name) => Number(element.querySelector(".heatmap-plot").dataset[name]));
    return { across, count, side };
  };

  const go = (next) => {
    const { across, count, side } = facts();
    place = Math.max(0, Math.min(count - 1, next));
    cursor.setAttribute("x", (place % across) * side);
    cursor.setAttribute("y", Math.floor(place / across) * side);
    cursor.removeAttribute("hidden");
    clearTimeout(timer);
    timer = setTimeout(ask, ASK_MS);
  };

  const ask = async () => {
    const cell = place;
    const answer = await fetch(`${element.dataset.source}&index=${cell}`);
    if (!answer.ok || cell !== place) return;
    const node = await answer.json();
    words.textContent = node.words;
    href = root + node.href;
  };

  const open = async () => {
    clearTimeout(timer);
    await ask();
    if (href) location.assign(href);
  };

  plot.addEventListener("keydown", (event) => {
    const { across, count } = facts();
    const next = {
      ArrowLeft: place - 1,
      ArrowRight: place + 1,
      ArrowUp: place - across,
      ArrowDown: place < 0 ? 0 : place + across,
      Home: 0,
      End: count - 1,
    }[event.key];
    if (event.key === "Enter" && place >= 0) open();
    else if (next === undefined) return;
    else go(next);
    event.preventDefault();
  });
  const under = (event) => {
    const { across, side } = facts();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.getScreenCTM().inverse());
    const [column, row] = [Math.floor(at.x / side), Math.floor(at.y / side)];
    const found = row * across + column;
    return column >= 0 && column < across && found >= 0 && found < facts().count ? found : -1;
  };
  plot.addEventListener("pointermove", (event) => {
    const found = under(event);
    if (found >= 0 && found !== place) go(found);
  });
  plot.addEventListener("click", (event) => {
    const found = under(event);
    if (found < 0) return;
    place = found;
    open();
  });
}
