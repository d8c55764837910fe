"""The door of every request: is the host ours, may this origin ask for it, and is somebody logged in.

Whatever is not listed as public needs a session; whatever is not a reading method, and every WebSocket, must come from
our own pages. Browsers send `Origin` or `Sec-Fetch-Site` on those, and pages of others cannot forge either.
"""

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from web.auth import Accounts

READING = ("GET", "HEAD", "OPTIONS")
PUBLIC = ("/login", "/static/", "/healthz", "/favicon.ico")
"""Paths for everybody; one that ends with a slash includes what is below it."""

CLOSED_FOR_LOGIN = 4401
"""WebSocket close code: the session is over, reconnecting will not help."""

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all, browsers hide the origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


class Guard:
    """ASGI middleware around the whole application; puts the viewer into `scope["state"]["viewer"]`."""

    def __init__(self, app: ASGIApp, *, accounts: Accounts, hosts: frozenset[str], is_https: bool) -> None:
        self._app = app
        self._accounts = accounts
        self._hosts = hosts
        self._is_https = is_https

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = self._with_headers(send)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, answer)
            return
        viewer = await self._accounts.viewer(cookie_of(headers, self._accounts.cookie_name))
        scope.setdefault("state", {})["viewer"] = viewer
        if viewer is None and not _is_public(scope["path"]):
            await _ask_to_log_in(scope, receive, answer)
            return
        await self._app(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if hostname(host) not in self._hosts:
            return PlainTextResponse(
                "This address is not one of this page's names. Use the one that it printed when it started.", 421
            )
        if scope["type"] == "http" and scope["method"] in READING:
            return None
        if not self._is_own_page(scope, headers, host):
            return PlainTextResponse("Refused: this did not come from a page of this site.", 403)
        return None

    def _is_own_page(self, scope: Scope, headers: Headers, host: str) -> bool:
        """Whether the browser vouches that one of our pages asks; without any word from a browser, no."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site != "same-origin":
            return False
        if origin is not None:
            scheme = "https" if self._is_https else "http"
            return origin == f"{scheme}://{host}"
        return site == "same-origin" and scope["type"] == "http"

    def _with_headers(self, send: Send) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if self._is_https:
                    headers.setdefault("strict-transport-security", "max-age=31536000")
                headers.setdefault("cache-control", "no-store")
            await send(message)

        return answer


def cookie_of(headers: Headers, name: str) -> str | None:
    """The value of one cookie of a request."""
    return cookie_parser(headers.get("cookie", "")).get(name)


def hostname(host: str) -> str:
    """The name in a Host header, without port and brackets.

    >>> hostname("127.0.0.1:8000"), hostname("[::1]:80"), hostname("localhost"), hostname("a@localhost")
    ('127.0.0.1', '::1', 'localhost', '')
    """
    if "@" in host or "/" in host:
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def local_path(path: str) -> str:
    """A path of this site to go on to; anything that could lead elsewhere becomes the front page.

    >>> local_path("/nodes?page=2"), local_path("//evil.example"), local_path("https://evil.example")
    ('/nodes?page=2', '/', '/')
    """
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"


def _is_public(path: str) -> bool:
    return any(path == public or (public.endswith("/") and path.startswith(public)) for public in PUBLIC)


async def _ask_to_log_in(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": CLOSED_FOR_LOGIN, "reason": "log in"})
        return
    response: Response
    if scope["path"].startswith("/api/"):
        response = JSONResponse({"error": "log in first"}, 401)
    elif scope["method"] == "GET" and "hx-request" not in Headers(scope=scope):
        query = scope["query_string"].decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        response = RedirectResponse(f"/login?next={quote(wanted, safe='/')}", 303)
    else:
        response = PlainTextResponse("Your session is over: log in again.", 401)
    await response(scope, receive, send)
