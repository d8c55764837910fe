"""Dataflow page and the changes that it offers: flows are paused, and plugins exchanged."""

from web.dataflow import api, flow_routes, routes

ROUTERS = (routes.router, flow_routes.router, api.router)
