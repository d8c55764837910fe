"""Audit page, its endpoints and downloads, and the program `python -m web.audit`."""

from web.audit import api, routes

ROUTERS = (routes.router, api.router)
