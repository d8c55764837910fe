"""Alerts: what fires and fired, rules with a test over history, and receivers of notices, with their endpoints."""

from web.alerts import api, routes

ROUTERS = (routes.router, api.router)
