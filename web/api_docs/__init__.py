"""Reference of the REST API: the page `/api/v1/docs` and the OpenAPI document, with examples."""

from web.api_docs import routes

ROUTERS = (routes.router,)
