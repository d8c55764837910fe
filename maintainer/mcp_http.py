"""MCP over HTTP: on loopback, or over TLS, for whoever shows the token, and for no page of a browser.

Every request is checked, whatever its path and method. A page that had its name point here (DNS rebinding) sends
another Host; a page of another origin sends its Origin; neither knows the token.
"""

import asyncio
import hmac
import os
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from astraflow.contract.errors import InvalidInput

TOKEN = "ASTRAFLOW_MCP_TOKEN"  # noqa: S105 (the variable's name, not a secret)
TOKEN_FILE = "mcp.token"  # noqa: S105 (the file's name, not a secret)
LEAST_CHARACTERS = 20
"""Of a token."""
PATH = "/mcp"
MAX_BODY_BYTES = 1 << 20
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 (told apart, not bound)
"""Addresses that a server can listen on and no client can ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpDoor:
    """Where a server listens, and who gets in."""

    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: str = ""
    """Public `https://` address of a proxy in front, which speaks TLS."""
    names: Sequence[str] = ()
    """Others under which it is reached."""

    def __post_init__(self) -> None:
        """Raises: InvalidInput for an address beyond this machine without TLS, for files that are no certificate and
        its key, for a token that can be guessed, or for a server that nobody could name."""
        if len(self.token) < LEAST_CHARACTERS:
            raise InvalidInput(f"the token of MCP has {len(self.token)} characters: {LEAST_CHARACTERS} at least")
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("TLS needs a certificate and its key together: --tls-certificate and --tls-key")
        public = urlsplit(self.behind_proxy)
        if self.behind_proxy and (public.scheme != "https" or not public.hostname):
            raise InvalidInput("--behind-proxy wants the proxy's public address, as in https://mcp.example.org")
        if self.behind_proxy and self.certificate is not None:
            raise InvalidInput("give either --behind-proxy, which speaks TLS, or --tls-certificate and --tls-key")
        if not (self.certificate or self.behind_proxy or _is_loopback(self.host)):
            raise InvalidInput(
                f"refusing to speak MCP on {self.host}: its token would travel unencrypted beyond this machine; listen "
                "on 127.0.0.1, give a certificate and its key (--tls-certificate, --tls-key), or put a TLS proxy in "
                "front and name its address with --behind-proxy https://NAME"
            )
        if self.host in _EVERYWHERE and not (self.names or self.behind_proxy):
            raise InvalidInput(f"{self.host} is nobody's name: say with --advertise NAME under which one it is reached")
        if self.certificate is not None and self.key is not None:
            _check_files(self.certificate, self.key)

    def hosts(self, port: int) -> list[str]:
        """Values of the Host header that mean this server: of a proxy its own, or this server's behind it."""
        loopback = ("127.0.0.1", "localhost", "[::1]") if _is_loopback(self.host) else ()
        named = dict.fromkeys((*loopback, _bracketed(self.host), *(_bracketed(name) for name in self.names)))
        return [*(f"{name}:{port}" for name in named), *self._hosts_of_proxy()]

    def url(self, port: int) -> str:
        """What a client is told to connect to."""
        if self.behind_proxy:
            return self.behind_proxy.rstrip("/") + PATH
        name = self.names[0] if self.host in _EVERYWHERE else self.host
        return f"{'https' if self.certificate else 'http'}://{_bracketed(name)}:{port}{PATH}"

    def _hosts_of_proxy(self) -> list[str]:
        """A port that goes without saying may be said."""
        public = urlsplit(self.behind_proxy)
        if not public.hostname:
            return []
        name = _bracketed(public.hostname)
        return [name, f"{name}:443"] if public.port in (None, 443) else [f"{name}:{public.port}"]


class Guarded:
    """An application behind the checks."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str]) -> None:
        """hosts: allowed values of Host. A request with any Origin is of a browser, and refused."""
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._headers = TransportSecurityMiddleware(security(hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise InvalidInput(f"{scope['type']} is not spoken here")
        request = Request(scope)
        refusal = await self._headers.validate_request(request)
        if refusal is None and not self._may_enter(request):
            refusal = Response(
                "a token is needed: Authorization: Bearer ...", status_code=401, headers={"WWW-Authenticate": "Bearer"}
            )
        await (refusal or self._app)(scope, receive, send)

    def _may_enter(self, request: Request) -> bool:
        shown = request.headers.getlist("authorization")
        return len(shown) == 1 and hmac.compare_digest(shown[0].encode("latin-1"), self._expected)


def security(hosts: Sequence[str]) -> TransportSecuritySettings:
    """What the SDK checks as well."""
    return TransportSecuritySettings(allowed_hosts=list(hosts), allowed_origins=[])


async def serve_http(server: MCPServer, door: McpDoor, *, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    """Answer until `stop` is set. on_ready: called with the URL. Raises: InvalidInput for an address it cannot have."""
    try:
        listening = socket.create_server(
            (door.host, door.port), family=socket.AF_INET6 if ":" in door.host else socket.AF_INET
        )
    except OSError as problem:
        raise InvalidInput(f"{door.host}:{door.port} cannot be listened on: {problem}") from None
    with listening:
        port = listening.getsockname()[1]
        hosts = door.hosts(port)
        app = server.streamable_http_app(
            streamable_http_path=PATH, max_request_body_size=MAX_BODY_BYTES, transport_security=security(hosts)
        )
        config = uvicorn.Config(
            app=Guarded(app, token=door.token, hosts=hosts),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ssl_certfile=door.certificate,
            ssl_keyfile=door.key,
            timeout_graceful_shutdown=2,
            lifespan="on",
        )
        server_of_http = _Server(config, lambda: on_ready(door.url(port)))
        await server_of_http.run_until(stop, listening)


class _Server(uvicorn.Server):
    """Signals are the process's own affair (runtime.service)."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until(self, stop: asyncio.Event, listening: socket.socket) -> None:
        """Answer; when it is told to stop, let answers in flight finish for a moment."""
        serving = asyncio.create_task(self.serve(sockets=[listening]))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self.should_exit = True
            await serving
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)


def kept_token(directory: Path) -> tuple[str, str]:
    """The token that clients show, and where it is: of the variable, or made at first for its owner to read.

    Raises: InvalidInput.
    """
    given = os.environ.get(TOKEN, "")
    if given:
        return given, f"the variable {TOKEN}"
    path = directory / TOKEN_FILE
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
        return path.read_text(encoding="ascii").strip(), str(path)
    except (OSError, UnicodeError) as problem:
        raise InvalidInput(f"the token file {path} cannot be used: {problem}") from None


def _check_files(certificate: Path, key: Path) -> None:
    """Raises: InvalidInput, before anything is served."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as problem:  # an SSLError is one, too
        why = problem.strerror or problem
        raise InvalidInput(f"{certificate} and {key} are no certificate and its key (PEM): {why}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
