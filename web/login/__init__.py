"""Login with a link, a password or an OpenID provider, and logout."""

from web.login import routes

ROUTERS = (routes.router,)
