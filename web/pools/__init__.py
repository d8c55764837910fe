"""Pool pages and endpoints: list, single pool, plans, what-if tables, fault injection, and the kill switch."""

from web.pools import api, chart_routes, kill_switch_routes, routes

ROUTERS = (chart_routes.router, routes.router, kill_switch_routes.router, api.router)
