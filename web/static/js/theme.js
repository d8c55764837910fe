// Light, dark or as the system has it, without a reload; the form does the same without this.
export function theme(form) {
  form.addEventListener("submit", (event) => {
    const choice = event.submitter?.value;
    if (!choice) return;
    event.preventDefault();
    document.documentElement.dataset.theme = choice;
    for (const button of form.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.value === choice));
    }
    const body = new URLSearchParams(new FormData(form));
    body.set("theme", choice);
    body.set("next", "/healthz");
    fetch(form.action, { method: "POST", body, redirect: "manual" });
  });
}
