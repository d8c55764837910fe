// Dialog that opens when htmx fills it; without scripts its content is a separate page.
export function dialog(element) {
  const body = element.querySelector("#dialog-body");
  document.addEventListener("htmx:after:swap", () => {
    if (element.open || !body.firstElementChild) return;
    element.setAttribute("aria-labelledby", body.querySelector("h1, h2")?.id ?? "");
    element.showModal();
  });
  element.addEventListener("click", (event) => {
    if (event.target === element || event.target.closest("[data-close]")) {
      event.preventDefault();
      element.close();
    }
  });
  element.addEventListener("close", () => body.replaceChildren());
}
