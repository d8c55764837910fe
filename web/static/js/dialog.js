// Opens when htmx has put a question into it; without scripts the question is a page of its own.
export function dialog(element) {
  document.addEventListener("htmx:after:swap", () => {
    if (!element.open && element.querySelector("form, [data-dialog]")) element.showModal();
  });
  element.addEventListener("click", (event) => {
    if (event.target === element || event.target.closest("[data-close]")) {
      event.preventDefault();
      element.close();
    }
  });
  element.addEventListener("close", () => element.querySelector("#dialog-body").replaceChildren());
}
