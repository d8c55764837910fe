// Opens the target of a link with data-drawer in the page's drawer, and shows the link's address.
import { dispatch } from "./address.js";

export function drawer(element) {
  const body = element.querySelector("#drawer-body");
  let opener = null;

  const close = () => {
    element.hidden = true;
    history.replaceState(null, "", element.dataset.back);
    (opener?.isConnected ? opener : document.getElementById("main")).focus();
  };

  document.addEventListener("click", async (event) => {
    const link = event.target.closest("[data-drawer]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const href = link.getAttribute("href");
    const answer = await fetch(`${element.dataset.source}${link.dataset.ordinal}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("event-detail");
    if (!found) {
      location.assign(href);
      return;
    }
    body.replaceChildren(found);
    opener = link;
    element.hidden = false;
    history.replaceState(null, "", href);
    dispatch("drawer-filled");
    element.querySelector(".drawer-close").focus();
  });
  element.addEventListener("click", (event) => {
    if (!event.target.closest(".drawer-close")) return;
    event.preventDefault();
    close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !element.hidden && !document.querySelector("dialog[open]")) close();
  });
}
