// Focus is never lost: what a swap or a patch takes away from under it gives it to what comes in its place.

// Puts other content into a region. What has the focus stays where it is on the screen, also in a list that scrolls.
export function refill(region, content) {
  const focused = document.activeElement;
  const isInside = region !== focused && region.contains(focused);
  const top = focused.getBoundingClientRect().top;
  region.replaceChildren(content);
  if (!isInside) return;
  refocus(region, focused);
  if (document.activeElement !== region) region.scrollTop += document.activeElement.getBoundingClientRect().top - top;
}

// To what leads to the same place, else to the whole of it.
function refocus(region, before) {
  const href = before.getAttribute("href");
  const same = href && [...region.querySelectorAll("a")].find((link) => link.getAttribute("href") === href);
  land(same || region);
}

function land(element) {
  if (element.tabIndex < 0) element.tabIndex = -1; // also of what takes no focus by itself
  element.focus({ preventScroll: true });
}

document.addEventListener("htmx:before:swap", ({ detail: { ctx } }) => {
  const target = typeof ctx.target === "string" ? document.querySelector(ctx.target) : ctx.target;
  ctx.hadFocus = target?.contains(document.activeElement) && { id: target.id, element: document.activeElement };
});

document.addEventListener("htmx:after:swap", ({ detail: { ctx } }) => {
  if (!ctx.hadFocus || ctx.hadFocus.element.isConnected) return;
  const place = document.getElementById(ctx.hadFocus.id);
  if (place) refocus(place, ctx.hadFocus.element);
});

// What was done is told where one goes on: at the part of the page that the address names, else at the sentence itself.
export function told(flash) {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1))); // is no :target yet
  if (place) place.setAttribute("aria-describedby", flash.id);
  land(place ?? flash);
}
