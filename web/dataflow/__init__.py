"""Dataflow page and the changes that it offers: flows are paused, and plugins exchanged."""

from web.dataflow import api, routes

ROUTERS = (routes.router, api.router)
