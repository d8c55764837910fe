// Keeps the focus: when a swap or a patch removes the focused element, its replacement gets the focus.

// Replaces the content of a region. The focused element keeps its position on the screen, also in a scrolling list.
export function refill(region, content) {
  const focused = document.activeElement;
  const isInside = region !== focused && region.contains(focused);
  const top = focused.getBoundingClientRect().top;
  region.replaceChildren(content);
  if (!isInside) return;
  refocus(region, focused);
  if (document.activeElement !== region) region.scrollTop += document.activeElement.getBoundingClientRect().top - top;
}

// Focuses the link with the same address, else the region.
function refocus(region, before) {
  const href = before.getAttribute("href");
  const same = href && [...region.querySelectorAll("a")].find((link) => link.getAttribute("href") === href);
  land(same || region);
}

function land(element) {
  if (element.tabIndex < 0) element.tabIndex = -1; // makes elements focusable that are not by default
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

// Focuses the part of the page that the address names, described by the flash message, else the message itself.
export function focusFlash(flash) {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1))); // :target does not match yet
  if (place) place.setAttribute("aria-describedby", flash.id);
  land(place ?? flash);
}
