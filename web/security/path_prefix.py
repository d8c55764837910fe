"""Path below which browsers reach the page, if a reverse proxy serves it at `https://HOST/PREFIX/`.

Inside the process every path is one of the application: routes, redirects, the field `next`. The prefix is
removed from a request here, whether the proxy has removed it or not, and is added where an address leaves the process:
in headers here, in pages by `PageRenderer`, and in scripts, which read `data-root` of the page.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astraflow.contract.errors import InvalidInput

ADDRESS_ATTRIBUTES = (
    "href",
    "src",
    "action",
    "formaction",
    "hx-get",
    "hx-post",
    "data-source",
    "data-back",
    "data-from",
    "data-href",
    "data-samples",
)
"""Attributes of templates that contain an address; a path in any other attribute is one of the application."""

_ADDRESSES = re.compile(rf'(?<=\s)((?:{"|".join(ADDRESS_ATTRIBUTES)})=")/(?!/)')
"""Quotes of values are escaped, so that only attributes of our templates match."""

_ADDRESS_HEADERS = (b"location", b"hx-redirect", b"hx-push-url")
_COOKIE_PATH = re.compile(rb"(?i)(?<=; path=)/")


def with_prefix(html: str, prefix: str) -> str:
    """Returns HTML with the prefix before each address of the application.

    >>> with_prefix('<a href="/runs"> <a href="#top"> <a href="https://example.org/runs"> /runs', "/team/astraflow")
    '<a href="/team/astraflow/runs"> <a href="#top"> <a href="https://example.org/runs"> /runs'
    """
    return _ADDRESSES.sub(rf"\1{prefix}/", html) if prefix else html


def check_path_prefix(prefix: str, routes: Iterable[BaseRoute]) -> None:
    """Checks that a path tells whether the proxy has removed the prefix. Raises: InvalidInput."""
    first = unquote(prefix).split("/")[1:2]
    if first and first[0] in {
        route.path.split("/")[1] for route in routes if isinstance(route, Route | WebSocketRoute)
    }:
        raise InvalidInput(
            f"cannot serve the page below {prefix!r}: it has pages of its own below '/{first[0]}'; give --behind-proxy "
            "a URL whose path begins otherwise, such as '/astraflow'",
            code="web.prefix_taken",
        )


class PathPrefixMiddleware:
    """ASGI middleware that removes the prefix from requests, and adds it to redirects and cookies."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.encode("ascii")
        self._decoded = unquote(prefix)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The router redirects `/runs/` to `/runs` with the scheme and the host of the request, not of the proxy.
        own = f"{scope['scheme']}://{Headers(scope=scope).get('host', '')}".encode("latin-1")

        async def answer(message: Message) -> None:
            if "headers" in message:
                message["headers"] = [(name, self._public(name, value, own)) for name, value in message["headers"]]
            await send(message)

        path = str(scope["path"])
        if path == self._decoded or path.startswith(f"{self._decoded}/"):
            scope = {**scope, "path": path.removeprefix(self._decoded) or "/"}
        await self._app(scope, receive, answer)

    def _public(self, name: bytes, value: bytes, own: bytes) -> bytes:
        """Returns the value of a header as browsers must get it. own: origin of the request."""
        if name in _ADDRESS_HEADERS and (path := value.removeprefix(own)).startswith(b"/"):
            return self._prefix + path
        return _COOKIE_PATH.sub(self._prefix + b"/", value) if name == b"set-cookie" else value
