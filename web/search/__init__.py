"""Command palette, search page, keyboard shortcuts, and the menu of runs."""

from web.search import routes

ROUTERS = (routes.router,)
