// A link about the page as it is now: scripts may have changed its address since it was rendered.
export function here(link) {
  link.addEventListener("click", () => {
    const address = `/views?of=${encodeURIComponent(location.pathname + location.search)}`;
    link.setAttribute("href", address);
    link.setAttribute("hx-get", address);
  }, true);
}
