"""Comparison of runs: page, charts, downloads and endpoint."""

from web.comparison import api, routes

ROUTERS = (routes.router, api.router)
