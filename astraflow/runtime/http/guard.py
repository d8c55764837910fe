"""Guard of HTTP services against web pages in a browser of the same machine.

A page of a foreign site can send requests to services on loopback, and reads their answers once its own host name leads
to 127.0.0.1 (DNS rebinding). The browser then says so: in `Origin`, in `Sec-Fetch-Site`, and in the `Host` that it was
asked for; and a page cannot send JSON to another origin without asking for permission first.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from astraflow.runtime.http.hosts import is_address, is_loopback

_JSON = "application/json"
_OWN_SITE = ("", "none", "same-origin")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class BrowserGuard:
    """ASGI middleware that refuses requests which a foreign web page may have sent."""

    def __init__(self, app: ASGIApp, *, checks_host: bool, needs_json: bool, names: Sequence[str] = ()) -> None:
        """checks_host: `Host` must be loopback, an address, or one of `names`: for services without a token, which only
        programs of this machine reach. needs_json: bodies must be declared as JSON."""
        self._app = app
        self._checks_host = checks_host
        self._needs_json = needs_json
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or refuses it."""
        refusal = self._refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> JSONResponse | None:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if self._checks_host and not (len(hosts) == 1 and self._is_own(hosts[0])):
            return _refused(421, "http.foreign_host", f"the host {hosts[:1]} is not this machine's", "127.0.0.1")
        is_own_origin = all(_same_host(origin, hosts) for origin in origins)
        if not is_own_origin or headers.get("sec-fetch-site", "") not in _OWN_SITE:
            cause = f"a web page of another site sent it ({', '.join(origins) or 'Sec-Fetch-Site'})"
            return _refused(403, "http.foreign_origin", cause, "a program")
        has_json = headers.get("content-type", "").partition(";")[0].strip().lower() == _JSON
        if self._needs_json and method in _WITH_BODY and not has_json:
            return _refused(415, "http.not_json", "its body is not declared as JSON", f"Content-Type: {_JSON}")
        return None

    def _is_own(self, host: str) -> bool:
        """Returns whether no foreign name leads here: addresses have no name that could be changed."""
        name = _hostname(f"//{host}")
        return is_loopback(name) or name in self._names or is_address(name)


def _same_host(origin: str, hosts: Sequence[str]) -> bool:
    """Returns whether an Origin is the service itself; a page of it has none today."""
    scheme, _, address = origin.partition("://")
    return scheme in ("http", "https") and [address.lower()] == [host.lower() for host in hosts]


def _hostname(address: str) -> str:
    try:
        parts = urlsplit(address)
        return parts.hostname or "" if parts.username is None and not parts.path else ""
    except ValueError:
        return ""


def _refused(status: int, code: str, cause: str, remedy: str) -> JSONResponse:
    message = f"cannot answer the request: {cause[:200]}; use {remedy}"
    return JSONResponse({"code": code, "message": message}, status_code=status)
