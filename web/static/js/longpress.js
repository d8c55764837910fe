// Link that submits its form when held for one second; a short press opens the confirmation page.
const HOLD_MS = 1000;

export function longpress(form) {
  const link = form.querySelector("a");
  let timer = null;
  let isDone = false;
  const begin = (event) => {
    const isKey = event.type === "keydown";
    if (timer || (isKey ? event.key !== " " && event.key !== "Enter" : event.button !== 0)) return;
    if (isKey) event.preventDefault();
    isDone = false;
    link.classList.add("is-pressed");
    timer = setTimeout(() => {
      isDone = true;
      form.requestSubmit();
    }, HOLD_MS);
  };
  const end = (event) => {
    const wasHeld = timer !== null;
    clearTimeout(timer);
    timer = null;
    link.classList.remove("is-pressed");
    if (wasHeld && !isDone && event.type === "keyup") link.click();
  };
  for (const name of ["pointerdown", "keydown"]) link.addEventListener(name, begin);
  for (const name of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"]) link.addEventListener(name, end);
  link.addEventListener("click", (event) => isDone && event.preventDefault());
  link.addEventListener("dragstart", (event) => event.preventDefault());
  link.addEventListener("contextmenu", (event) => timer && event.preventDefault());
}
