"""MCP over HTTP: on loopback or over TLS, with a token, refused for browsers.

Every request is checked, whatever its path and method. DNS rebinding sends another Host; a page of another origin sends
its Origin; neither has the token.
"""

import asyncio
import hmac
import os
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.http.hosts import WILDCARDS, is_loopback, proxy_url
from astraflow.runtime.http.server import listening, serving_http

TOKEN = "ASTRAFLOW_MCP_TOKEN"  # noqa: S105 (the variable's name, not a secret)
TOKEN_FILE = "mcp.token"  # noqa: S105 (the file's name, not a secret)
MIN_TOKEN_CHARACTERS = 20
"""Minimum length of a token, characters."""
PATH = "/mcp"
MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class McpEndpoint:
    """Address, credentials and TLS settings of the server."""

    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: str = ""
    """Public `https://` URL of a TLS proxy in front of the server, also with a path."""
    names: Sequence[str] = ()
    """Additional host names of the server."""

    def __post_init__(self) -> None:
        """Raises: InvalidInput for an address beyond this machine without TLS, an invalid certificate or key, a short
        token, or a wildcard address without a host name."""
        if len(self.token) < MIN_TOKEN_CHARACTERS:
            raise InvalidInput(
                f"cannot use the MCP token: it has {len(self.token)} characters; use at least {MIN_TOKEN_CHARACTERS}",
                code="mcp.weak_token",
            )
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput(
                "cannot set up TLS: certificate and key belong together; give both --tls-certificate and --tls-key",
                code="mcp.invalid_tls",
            )
        if self.behind_proxy:
            try:
                object.__setattr__(self, "behind_proxy", proxy_url(self.behind_proxy))
            except ValueError as problem:
                raise InvalidInput(f"cannot use --behind-proxy: {problem}", code="mcp.invalid_proxy_url") from None
        if self.behind_proxy and self.certificate is not None:
            raise InvalidInput(
                "cannot set up TLS: --behind-proxy already provides it; drop --behind-proxy or the certificate and key",
                code="mcp.invalid_tls",
            )
        if not (self.certificate or self.behind_proxy.startswith("https:") or is_loopback(self.host)):
            raise InvalidInput(
                f"cannot serve MCP on {self.host!r}: the token would travel unencrypted beyond this machine; listen on "
                "127.0.0.1, give --tls-certificate and --tls-key, or use a TLS proxy with --behind-proxy https://NAME",
                code="mcp.tls_required",
            )
        if self.host in WILDCARDS and not (self.names or self.behind_proxy):
            raise InvalidInput(
                f"cannot serve MCP on {self.host!r}: clients need a host name; give one with --advertise NAME",
                code="mcp.host_name_missing",
            )
        if self.certificate is not None and self.key is not None:
            _check_files(self.certificate, self.key)

    def hosts(self, port: int) -> list[str]:
        """Accepted values of the Host header: names of this server, and of the proxy in front."""
        loopback = ("127.0.0.1", "localhost", "[::1]") if is_loopback(self.host) else ()
        named = dict.fromkeys((*loopback, _bracketed(self.host), *(_bracketed(name) for name in self.names)))
        return [*(f"{name}:{port}" for name in named), *self._hosts_of_proxy()]

    def url(self, port: int) -> str:
        """URL for clients."""
        if self.behind_proxy:
            return self.behind_proxy + PATH
        name = self.names[0] if self.host in WILDCARDS else self.host
        return f"{'https' if self.certificate else 'http'}://{_bracketed(name)}:{port}{PATH}"

    def _hosts_of_proxy(self) -> list[str]:
        """Host values of the proxy; the default port may be present."""
        public = urlsplit(self.behind_proxy)
        if not public.hostname:
            return []
        name, usual = _bracketed(public.hostname), 443 if public.scheme == "https" else 80
        return [name, f"{name}:{usual}"] if public.port in (None, usual) else [f"{name}:{public.port}"]


class TokenMiddleware:
    """ASGI middleware that checks host, origin and token."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str], public_path: str = PATH) -> None:
        """hosts: accepted values of Host. Requests with an Origin come from a browser and are refused.

        public_path: path of the endpoint at the proxy, which a proxy may leave as it is.
        """
        self._app = app
        self._public_path = unquote(public_path)
        self._expected = f"Bearer {token}".encode()
        self._headers = TransportSecurityMiddleware(security(hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise InvalidInput(
                f"cannot serve {scope['type']!r}: only HTTP is supported", code="mcp.unsupported_protocol"
            )
        request = Request(scope)
        refusal = await self._headers.validate_request(request)
        if refusal is None and not self._is_authorized(request):
            refusal = Response(
                "cannot authenticate: no valid token; send Authorization: Bearer TOKEN",
                status_code=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope["path"] == self._public_path:
            scope = {**scope, "path": PATH}
        await (refusal or self._app)(scope, receive, send)

    def _is_authorized(self, request: Request) -> bool:
        headers = request.headers.getlist("authorization")
        return len(headers) == 1 and hmac.compare_digest(headers[0].encode("latin-1"), self._expected)


def security(hosts: Sequence[str]) -> TransportSecuritySettings:
    """Settings of the SDK's own checks."""
    return TransportSecuritySettings(allowed_hosts=list(hosts), allowed_origins=[])


async def serve_http(
    server: MCPServer, endpoint: McpEndpoint, *, stop: asyncio.Event, on_ready: Callable[[str], None]
) -> None:
    """Serves until `stop` is set. on_ready: called with the URL. Raises: InvalidInput if it cannot listen."""
    with listening(endpoint.host, endpoint.port) as listener:
        port = listener.getsockname()[1]
        hosts = endpoint.hosts(port)
        app = server.streamable_http_app(
            streamable_http_path=PATH, max_request_body_size=MAX_BODY_BYTES, transport_security=security(hosts)
        )
        async with serving_http(
            TokenMiddleware(app, token=endpoint.token, hosts=hosts, public_path=urlsplit(endpoint.url(port)).path),
            listener,
            drain_s=2,
            lifespan="on",
            log_level="warning",
            ssl_certfile=endpoint.certificate,
            ssl_keyfile=endpoint.key,
        ):
            on_ready(endpoint.url(port))
            await stop.wait()


def load_or_create_token(directory: Path) -> tuple[str, str]:
    """Token of the clients and its source: the variable, or a file created on first use for its owner.

    Raises: InvalidInput.
    """
    token = os.environ.get(TOKEN, "")
    if token:
        return token, f"the variable {TOKEN}"
    path = directory / TOKEN_FILE
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            write_private(path, secrets.token_urlsafe(32) + "\n")
        return path.read_text(encoding="ascii").strip(), str(path)
    except (OSError, UnicodeError) as problem:
        raise InvalidInput(
            f"cannot use the token file {str(path)!r}: {problem}; check its content and permissions",
            code="mcp.token_file_unusable",
        ) from None


def _check_files(certificate: Path, key: Path) -> None:
    """Checks that both files load. Raises: InvalidInput."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as problem:  # includes SSLError
        cause = problem.strerror or problem
        raise InvalidInput(
            f"cannot load the TLS certificate {str(certificate)!r} and key {str(key)!r}: {cause}; "
            "use matching PEM files",
            code="mcp.invalid_tls",
        ) from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
