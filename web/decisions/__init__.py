"""Decisions about the fleet: list, single decision, downloads and endpoints."""

from web.decisions import api, routes

ROUTERS = (routes.router, api.router)
