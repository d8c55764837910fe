"""One module a page: read, ask, render."""
