"""Page of the server for people: tenants, their models, and what these use. The password of the request is the key of
the operator, who sees all tenants, or that of a tenant, who sees its own."""

import base64
import binascii
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from astraflow.contract.errors import NotAuthenticated
from astraflow.tinker.service import TinkerServer

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ASK = {**_HEADERS, "WWW-Authenticate": 'Basic realm="Tinker server", charset="UTF-8"'}


class Page:
    """Page of a server."""

    def __init__(self, server: TinkerServer) -> None:
        self._server = server
        source = files("astraflow.tinker").joinpath("page.html").read_text()
        self._template = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)

    async def show(self, request: Request) -> Response:
        """Answers with the page, or asks for a password."""
        try:
            names = self._server.tenants.visible(_password(request.headers.get("authorization", "")))
        except NotAuthenticated as problem:
            return HTMLResponse(self._template.render(tenants=[], problem=str(problem)), 401, _ASK)
        tenants = [self._server.catalogue.overview(name) for name in names]
        return HTMLResponse(self._template.render(tenants=tenants, problem=""), headers=_HEADERS)


def _password(header: str) -> str:
    """Returns the password of basic authentication, or an empty text."""
    scheme, _, value = header.partition(" ")
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2] if scheme.lower() == "basic" else ""
    except (binascii.Error, UnicodeDecodeError):
        return ""
