"""Routes of the pages, one module per page: each reads state, calls a command or a query, and renders a template."""
