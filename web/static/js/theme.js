// Switches between light, dark and system theme without a reload; without scripts the form does it.
export function theme(form) {
  form.addEventListener("submit", (event) => {
    const choice = event.submitter?.value;
    if (!choice) return;
    event.preventDefault();
    document.documentElement.dataset.theme = choice;
    const buttons = [...form.querySelectorAll("button")];
    const next = buttons[(buttons.findIndex((button) => button.value === choice) + 1) % buttons.length];
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.value === choice));
      button.toggleAttribute("data-key", button === next);
    }
    next.dataset.key = "t";
    const body = new URLSearchParams(new FormData(form));
    body.set("theme", choice);
    body.set("next", "/healthz");
    fetch(form.action, { method: "POST", body, redirect: "manual", keepalive: true }); // also when the next page is opened at once
  });
}
