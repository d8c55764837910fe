"""Pages and endpoints that launch, stop and resume runs: forms from recipes, previews and logs."""

from web.launches import api, routes

ROUTERS = (routes.router, api.router)
