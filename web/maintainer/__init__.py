"""Page and endpoints of the maintainer: mode, proposals, budgets and transcript."""

from web.maintainer import api, routes

ROUTERS = (routes.router, api.router)
