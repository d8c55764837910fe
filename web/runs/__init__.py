"""Runs: list, page of one run, its charts and downloads, and endpoints of runs, reports and time series."""

from web.runs import api, details_routes, reports_api, routes

ROUTERS = (details_routes.router, routes.router, reports_api.router, api.router)
