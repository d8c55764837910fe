"""Events of the run: list, single event and downloads."""

from web.events import routes

ROUTERS = (routes.router,)
