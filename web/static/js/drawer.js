// Shows the event of a link in the page's drawer, and the link's address.
import { dispatch } from "./address.js";

const attached = new WeakSet();
let opener = null;

export async function open(element, link) {
  const href = link.getAttribute("href");
  const answer = await fetch(`${element.dataset.source}${link.dataset.ordinal}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const found = page.getElementById("event-detail");
  if (!found) {
    location.assign(href);
    return;
  }
  drawer(element);
  element.querySelector("#drawer-body").replaceChildren(found);
  opener = link;
  element.hidden = false;
  history.replaceState(null, "", href);
  dispatch("drawer-filled");
  element.querySelector(".drawer-close").focus();
}

// Attaches the ways to close a drawer. The server opens it itself where the address names an event.
export function drawer(element) {
  if (attached.has(element)) return;
  attached.add(element);
  const close = () => {
    element.hidden = true;
    history.replaceState(null, "", element.dataset.back);
    (opener?.isConnected ? opener : document.getElementById("main")).focus();
  };
  element.addEventListener("click", (event) => {
    if (!event.target.closest(".drawer-close")) return;
    event.preventDefault();
    close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !element.hidden && !document.querySelector("dialog[open]")) close();
  });
}
