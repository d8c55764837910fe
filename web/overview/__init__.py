"""Overview page of the run, and its charts at full width."""

from web.overview import chart_routes, routes

ROUTERS = (routes.router, chart_routes.router)
