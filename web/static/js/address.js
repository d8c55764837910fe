// The page's address and its events.

// Changes the query of the address; null removes a parameter.
export function changeAddress(wanted) {
  const address = new URL(location);
  for (const [name, value] of Object.entries(wanted)) {
    if (value === null) address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  history.replaceState(null, "", address);
}

// Path of the page's root, before which a proxy may put a prefix.
export const root = document.documentElement.dataset.root;

// Dispatches an event, to which htmx and scripts listen.
export function dispatch(name, detail = null) {
  document.body.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
}

// Calls the listener when a part of the page was replaced.
export function onReplaced(listener) {
  for (const name of ["htmx:after:swap", "live-region", "drawer-filled"]) document.addEventListener(name, listener);
}
