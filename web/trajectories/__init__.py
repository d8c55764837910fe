"""Trajectories: list, groups, conversations with their tokens and calls, live sessions of agents, and endpoints."""

from web.trajectories import api, routes, sessions_api

ROUTERS = (routes.router, api.router, sessions_api.router)
