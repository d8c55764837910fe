"""Strict parsing of host names, origins and client addresses."""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from web.process_settings import Settings

_PORTS = {"http": 80, "https": 443}


def hostname(host: str) -> str:
    """Name in a Host header, without port and brackets.

    >>> hostname("127.0.0.1:8000"), hostname("[::1]:80"), hostname("Localhost"), hostname("a@localhost")
    ('127.0.0.1', '::1', 'localhost', '')
    """
    if "@" in host or "/" in host:
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_own_origin(origin: str, *, host: str, settings: Settings) -> bool:
    """True if an Origin is this page's own: the proxy's if one is configured, else the Host's.

    Compares scheme, name and port; browsers omit the default port.
    """
    parsed = _origin(origin)
    return parsed is not None and parsed == _origin(own_address(host, settings))


def own_address(host: str, settings: Settings) -> str:
    """URL of this page for browsers, from a request for `host`."""
    return settings.behind_proxy or f"{'https' if settings.is_https else 'http'}://{host}"


def came_from(scope: Scope, headers: Headers, *, is_proxied: bool) -> str:
    """Client address: the peer, or the address that the proxy in front states.

    Only the last entry of `X-Forwarded-For` is the proxy's; clients can forge the others.
    """
    peer = str((scope.get("client") or ("",))[0])
    if not is_proxied:
        return peer
    last = ",".join(headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
    try:
        return str(ipaddress.ip_address(last))
    except ValueError:
        return peer


def local_path(path: str) -> str:
    """Local path for a redirect; a path that could lead to another site becomes `/`.

    >>> local_path("/nodes?page=2"), local_path("//evil.example"), local_path("https://evil.example")
    ('/nodes?page=2', '/', '/')
    """
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"


def _origin(address: str) -> tuple[str, str, int | None] | None:
    """Scheme, name and port.

    >>> _origin("https://a.example"), _origin("http://[::1]:80"), _origin("null"), _origin("http://a:b")
    (('https', 'a.example', 443), ('http', '::1', 80), None, None)
    """
    try:
        parts = urlsplit(address)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        return None
    return parts.scheme, parts.hostname, port
