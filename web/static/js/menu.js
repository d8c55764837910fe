// Menu in a <details>: closes on Escape, on a click elsewhere and when another opens; arrow keys move through it.
export function menu(element) {
  const summary = element.querySelector("summary");
  const items = () => [...element.querySelectorAll("a, button, input")].filter((item) => item.offsetParent !== null);
  const close = (isFocused) => {
    element.open = false;
    if (isFocused) summary.focus();
  };
  element.addEventListener("toggle", () => {
    if (!element.open) return;
    for (const other of document.querySelectorAll("details.menu[open]")) {
      if (!other.contains(element) && other !== element) other.open = false;
    }
  });
  element.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && element.open) {
      event.stopPropagation();
      close(true);
    } else if (step && element.open) {
      event.preventDefault();
      const all = items();
      all[(all.indexOf(document.activeElement) + step + all.length) % all.length]?.focus();
    }
  });
  document.addEventListener("pointerdown", (event) => element.open && !element.contains(event.target) && close(false));
  element.addEventListener("click", async (event) => {
    const link = event.target.closest("[data-copy]");
    if (!link) return;
    event.preventDefault();
    await navigator.clipboard.writeText(new URL(link.getAttribute("href"), location.href).href);
    link.textContent = "Copied";
  });
}
