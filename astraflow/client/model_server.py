"""HTTP client of one engine server: JSON requests over pooled connections, with a limit for each."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from astraflow.contract.errors import AstraFlowError, Unavailable

KEPT_OPEN_S = 60.0
"""Time for which idle connections are kept. A server must keep them longer: a request on a connection that it closes at
that moment is lost. Seconds."""
_MAX_ERROR_CHARACTERS = 500


class ServerRefused(AstraFlowError):
    """The server answered with an error status; `status` is the HTTP status, `retry_after_s` its `Retry-After`."""

    def __init__(self, path: str, status: int, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(
            f"cannot call {path}: the engine server answered {status}: {text[:_MAX_ERROR_CHARACTERS]}; read its log",
            code="engine.server_refused",
        )
        self.status = status
        self.retry_after_s = retry_after_s


class ServerUnreachable(Unavailable):
    """The connection failed or was closed without an answer."""


class ServerClient:
    """Client of one server. Connections are reused, and their number is not limited: the server queues requests."""

    def __init__(self, base_url: str, *, key: str = "") -> None:
        """base_url: such as `http://127.0.0.1:30000`. key: bearer token; empty without one."""
        self.base_url = base_url
        self.adapter = ""
        """Name of the adapter that requests use; empty for the model itself."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_OPEN_S), headers=headers, trust_env=False
        )

    async def get(self, path: str, *, limit_s: float) -> bytes:
        """Returns the body of a GET request. Raises: ServerRefused, ServerUnreachable, TimeoutError."""
        return await self._send("GET", path, b"", {}, limit_s)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        limit_s: float | None,
        is_repeatable: bool = False,
    ) -> Any:
        """Returns the JSON answer to a POST request, or None for an empty one.

        limit_s: time limit in seconds; None without one, for generations. is_repeatable: sends the request once more
        when a reused connection was closed meanwhile; vLLM closes connections after an error.
        Raises: ServerRefused, ServerUnreachable, TimeoutError.
        """
        payload = orjson.dumps(body if body is not None else {}, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            answer = await self._send("POST", path, payload, query or {}, limit_s)
        except ServerUnreachable:
            if not is_repeatable:
                raise
            answer = await self._send("POST", path, payload, query or {}, limit_s)
        if not answer:
            return None
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError:
            return answer.decode(errors="replace")

    async def close(self) -> None:
        """Closes all connections; requests in flight fail."""
        await self._session.close()

    async def _send(
        self, method: str, path: str, payload: bytes, query: Mapping[str, str], limit_s: float | None
    ) -> bytes:
        try:
            async with (
                asyncio.timeout(limit_s),
                self._session.request(
                    method,
                    self.base_url + path,
                    data=payload or None,
                    params=query,
                    headers={"Content-Type": "application/json"} if payload else {},
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
                ) as response,
            ):
                answer = await response.read()
                if response.status >= 400:
                    retry_after_s = _seconds(response.headers.get("Retry-After", ""))
                    text = answer.decode(errors="replace")
                    raise ServerRefused(path, response.status, text, retry_after_s=retry_after_s)
                return answer
        except (aiohttp.ClientError, ConnectionError) as problem:
            raise ServerUnreachable(
                f"cannot reach the engine server at {self.base_url}{path}: {type(problem).__name__}: {problem}; "
                "the node restarts it",
                code="engine.server_unreachable",
            ) from problem


def _seconds(header: str) -> float | None:
    """Returns a `Retry-After` in seconds; None without one, and for a date."""
    return float(header) if header.isascii() and header.isdigit() else None
