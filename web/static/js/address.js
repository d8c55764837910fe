// Changes the query of the page's address; null removes a parameter.
export function changeAddress(wanted) {
  const address = new URL(location);
  for (const [name, value] of Object.entries(wanted)) {
    if (value === null) address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  history.replaceState(null, "", address);
}
