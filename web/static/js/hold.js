// A button that acts when it is held: a slip does nothing. Without scripts it is a link to a page that asks.
const HOLD_MS = 1000;
const KEYS = [" ", "Enter"];

export function hold(element) {
  const form = element.closest("form");
  const label = element.querySelector(".kill-label");
  const text = label.textContent;
  let timer = null;
  element.style.setProperty("--hold-ms", `${HOLD_MS}ms`);

  const begin = () => {
    if (timer) return;
    element.classList.add("is-held");
    label.textContent = "Keep holding…";
    timer = setTimeout(() => {
      end();
      form.requestSubmit();
    }, HOLD_MS);
  };
  const end = () => {
    clearTimeout(timer);
    timer = null;
    element.classList.remove("is-held");
    label.textContent = text;
  };

  element.addEventListener("click", (event) => event.preventDefault());
  element.addEventListener("pointerdown", (event) => {
    if (event.button === 0) begin();
  });
  for (const name of ["pointerup", "pointerleave", "pointercancel", "blur", "contextmenu"]) {
    element.addEventListener(name, end);
  }
  element.addEventListener("keydown", (event) => {
    if (!KEYS.includes(event.key)) return;
    event.preventDefault();
    if (!event.repeat) begin();
  });
  element.addEventListener("keyup", (event) => {
    if (KEYS.includes(event.key)) end();
  });
}
