"""Settings page: own account, users, grants, tokens, providers and exporters, with their endpoints."""

from web.settings import credentials_api, grant_routes, grants_api, providers_api, routes, users_api

_MODULES = (routes, grant_routes, grants_api, users_api, credentials_api, providers_api)
ROUTERS = tuple(module.router for module in _MODULES)
