// Link that passes on the page's current address, which scripts may have changed since it was rendered.
export function currentlink(link) {
  link.addEventListener("click", () => {
    const { root } = document.documentElement.dataset;
    const path = location.pathname.slice(root.length) || "/";
    const address = `${root}/views?of=${encodeURIComponent(path + location.search)}`;
    link.setAttribute("href", address);
    link.setAttribute("hx-get", address);
  }, true);
}
