"""Trajectories: list, groups, conversations with tokens and calls, labels, data sets, live sessions, and endpoints."""

from web.trajectories import api, label_routes, labels_api, routes, sessions_api

ROUTERS = (routes.router, api.router, label_routes.router, labels_api.router, sessions_api.router)
