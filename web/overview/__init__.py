"""Overview page of the run, and its charts at full width."""

from web.overview import api, routes

ROUTERS = (routes.router, api.router)
