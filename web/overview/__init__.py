"""Overview page of the run, and its charts at full width."""

from web.overview import routes

ROUTERS = (routes.router,)
