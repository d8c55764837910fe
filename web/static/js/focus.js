// Focus is never lost: what a swap or a patch takes away from under it gives it to what comes in its place.

// To what leads to the same place, else to the whole of it.
export function refocus(region, before) {
  const href = before.getAttribute("href");
  const same = href && [...region.querySelectorAll("a")].find((link) => link.getAttribute("href") === href);
  land(same || region);
}

export function land(element) {
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
