"""Node pages and endpoints: table, map, single node and drains."""

from web.nodes import api, routes

ROUTERS = (routes.router, api.router)
