"""HTTP requests to the proxy: target, credentials and body, within limits."""

import asyncio
from dataclasses import dataclass, field

from blake3 import blake3
from starlette.types import Receive, Scope

from astraflow.agents.calls import CallRefused, Refusal
from astraflow.agents.dialects.dialect import InvalidCall
from astraflow.agents.proxy.connections import DISCONNECTED
from astraflow.agents.proxy.sessions import ProxySession

MAX_BODY_BYTES = 64 * 2**20
MAX_SESSION_BODY_BYTES = 2 * MAX_BODY_BYTES
"""Bodies of one session that are in memory at a time."""
BODY_LIMIT_S = 60.0
_MAX_DISCARDED_BYTES = 4 * MAX_BODY_BYTES
_SESSION_PREFIX = "/s/"
_MAX_KEY_CHARACTERS = 256


class ClientGone(Exception):
    """The client disconnected."""


@dataclass(slots=True)
class HttpRequest:
    """One request."""

    scope: Scope
    receive: Receive
    path: str = field(init=False)
    """Path without the session's prefix, such as `/v1/models`."""
    body: bytes = b""
    """Complete once `read` has returned."""
    size_bytes: int = 0
    """Bytes of the body that count towards the session's limit."""
    is_read: bool = False
    """The body was read, or discarded."""
    must_close: bool = False
    """The client still sends: the connection cannot be used for another request."""
    _secret: str = field(init=False)
    """Secret in the URL; empty without one."""
    _headers: dict[bytes, bytes] = field(init=False)
    """First value of each header."""

    def __post_init__(self) -> None:
        self._secret, self.path = self._split()
        self._headers = dict(reversed(self.scope["headers"]))

    @property
    def method(self) -> str:
        """HTTP method."""
        return str(self.scope["method"])

    @property
    def is_anthropic(self) -> bool:
        """Whether the request has a header that only clients of the messages API send."""
        return bool(self.header(b"anthropic-version"))

    def secrets(self) -> list[str]:
        """Returns the credentials: the credential in the URL, otherwise those in headers."""
        if self._secret:
            return [self._secret]
        bearer = self.header(b"authorization")
        scheme, _, key = bearer.partition(" ")
        presented = [self.header(b"x-api-key"), key.strip() if scheme.lower() == "bearer" else ""]
        return [secret for secret in presented if secret]

    def header(self, name: bytes) -> str:
        """Returns a header, or an empty string."""
        return self._headers.get(name, b"").decode("latin-1")

    def retry_key(self) -> str:
        """Returns what a call and its retries have in common: an idempotency key, or a digest of path and body."""
        if key := self.header(b"idempotency-key"):
            return f"key:{key[:_MAX_KEY_CHARACTERS]}"
        return f"body:{self.path}:{blake3(self.body).hexdigest()}"

    def is_retry(self) -> bool:
        """Returns whether the call may repeat an earlier one: it says so, or names its key itself."""
        return bool(self.header(b"idempotency-key")) or self.header(b"x-stainless-retry-count").strip("0 ") != ""

    async def read(self, session: ProxySession) -> None:
        """Reads the body; the session accounts for it until `release`. Raises: CallRefused, ClientGone."""
        if self.header(b"content-encoding") not in ("", "identity"):
            raise InvalidCall(
                "cannot read the request: its body is compressed; send it as it is", code="agent.compressed_body"
            )
        chunks = []
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                while chunk := await self._chunk():
                    chunks.append(chunk)
                    self.size_bytes += len(chunk)
                    session.body_bytes += len(chunk)
                    _check_size(self.size_bytes, session)
                self.body = b"".join(chunks)
        except TimeoutError:
            self.must_close = True
            raise InvalidCall(
                f"cannot read the request: its body did not arrive within {BODY_LIMIT_S:g} s; send it faster",
                code="agent.body_too_slow",
            ) from None

    async def discard(self) -> None:
        """Reads what is left of the body, so that the client reads the answer. Raises: ClientGone."""
        size = 0
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                while chunk := await self._chunk():
                    size += len(chunk)
                    if size > _MAX_DISCARDED_BYTES:
                        self.must_close = True
                        return
        except TimeoutError:
            self.must_close = True

    def release(self, session: ProxySession) -> None:
        """Ends the accounting of the body."""
        session.body_bytes -= self.size_bytes

    @property
    def disconnected(self) -> "asyncio.Future[None]":
        """Done when the client has disconnected; without a result before that. Not to be cancelled."""
        disconnected: asyncio.Future[None] = self.scope["extensions"][DISCONNECTED]["future"]
        return disconnected

    async def _chunk(self) -> bytes:
        """Returns the next bytes of the body; empty at its end."""
        while not self.is_read and not self.must_close:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self.is_read = not message.get("more_body", False)
            if chunk := message.get("body", b""):
                return bytes(chunk)
        return b""

    def _split(self) -> tuple[str, str]:
        path = str(self.scope["path"])
        if not path.startswith(_SESSION_PREFIX):
            return "", path
        secret, slash, rest = path.removeprefix(_SESSION_PREFIX).partition("/")
        return secret, slash + rest


def _check_size(size: int, session: ProxySession) -> None:
    if size > MAX_BODY_BYTES:
        raise CallRefused(
            f"cannot read the request: its body has more than {MAX_BODY_BYTES} bytes; send less",
            refusal=Refusal.TOO_LARGE,
            code="agent.body_too_large",
        )
    if session.body_bytes > MAX_SESSION_BODY_BYTES:
        raise CallRefused(
            f"cannot read the request: bodies of parallel calls have more than {MAX_SESSION_BODY_BYTES} bytes; send "
            "fewer at once",
            refusal=Refusal.BUSY,
            code="agent.bodies_too_large",
        )
