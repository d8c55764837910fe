"""Weights page and endpoints: published versions, transfers and lagging nodes."""

from web.weights import api, routes

ROUTERS = (routes.router, api.router)
