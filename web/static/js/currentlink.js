// Link that passes on the page's current address, which scripts may have changed since it was rendered.
export function currentlink(link) {
  link.addEventListener("click", () => {
    const address = `/views?of=${encodeURIComponent(location.pathname + location.search)}`;
    link.setAttribute("href", address);
    link.setAttribute("hx-get", address);
  }, true);
}
