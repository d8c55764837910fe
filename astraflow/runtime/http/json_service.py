"""Small HTTP services that answer JSON requests with JSON: server and client.

A request is a POST of a JSON object; the answer is a JSON object, or an error with `code` and `message`. Environments
and search indexes are served this way, so that they may run in another process or on another machine.
"""

import asyncio
import hmac
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, Unavailable
from astraflow.runtime.http.guard import BrowserGuard
from astraflow.runtime.http.hosts import is_loopback
from astraflow.runtime.http.server import listening, serving_http, url_of
from astraflow.runtime.logs import get_logger
from astraflow.runtime.service import run_process
from astraflow.runtime.untrusted_json import PLAIN

if TYPE_CHECKING:
    import aiohttp

log = get_logger()

Handler = Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a request. An `AstraFlowError` becomes an answer with its code; `InvalidInput` is the caller's fault."""

MAX_REQUEST_BYTES = 16 * 2**20
MAX_ANSWER_BYTES = 64 * 2**20
_MAX_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """Address of a service (port 0 takes a free one), and the bearer token that it requires; empty: none."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise InvalidInput(
                f"cannot listen on {self.host!r}: beyond loopback a token is required; give a token file, or listen on "
                "127.0.0.1",
                code="service.token_required",
            )


@asynccontextmanager
async def serving_json(address: ServiceAddress, handlers: Mapping[str, Handler]) -> AsyncIterator[str]:
    """Serves the handlers, by path such as `/start`; yields the URL. Without a token, requests of web pages and bodies
    that are not declared as JSON are refused. Raises: InvalidInput when the port is in use."""
    routes = [Route(path, _endpoint(handler, address.token), methods=["POST"]) for path, handler in handlers.items()]
    with listening(address.host, address.port) as listener:
        is_open = not address.token
        async with serving_http(
            BrowserGuard(Starlette(routes=routes), checks_host=is_open, needs_json=is_open), listener
        ):
            yield url_of(listener, address.host)


def run_json_service(serving: Callable[[], AbstractAsyncContextManager[str]]) -> int:
    """Runs a service until a signal; prints its URL. serving: builds what yields the URL. Returns the exit code."""

    async def main(stop: asyncio.Event) -> None:
        async with serving() as url:
            print(f"serving at {url}", flush=True)  # noqa: T201 (output of a command)
            await stop.wait()

    return run_process(main, has_large_messages=False)


def read_service_token(file: Path | None, *, variable: str) -> str:
    """Returns the token from a file or from an environment variable; empty when neither is given. Raises:
    InvalidInput."""
    if file is None:
        return os.environ.get(variable, "")
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"cannot read the token file {str(file)!r}: {problem}; check the path and its permissions",
            code="service.unreadable_token",
        ) from None
    if not token:
        raise InvalidInput(
            f"cannot use the token file {str(file)!r}: it is empty; write a token into it", code="service.empty_token"
        )
    return token


class JsonRefused(AstraFlowError):
    """The service answered with an error. `status` is the HTTP status; `code` is the code of the service."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


class JsonClient:
    """Client of one service. Open it with `async with`; needs the package `aiohttp`."""

    def __init__(self, url: str, *, token: str = "", connections: int = 256) -> None:
        """connections: maximum of open ones; further requests wait."""
        self._url = url.rstrip("/")
        self._token = token
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        headers = {**PLAIN, **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        connector = aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=30.0)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, trust_env=False, auto_decompress=False
        )
        return self

    async def __aexit__(self, *problem: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, path: str, body: Mapping[str, Any], *, limit_s: float, is_repeatable: bool = True) -> Any:
        """Returns the JSON answer. is_repeatable: sends the request once more when the connection breaks.

        Raises: JsonRefused; Unavailable when no answer arrives within `limit_s`.
        """
        data = json.dumps(body, ensure_ascii=False).encode()
        try:
            async with asyncio.timeout(limit_s):
                try:
                    return await self._post(path, data)
                except Unavailable:
                    if not is_repeatable:
                        raise
                    return await self._post(path, data)
        except TimeoutError:
            raise Unavailable(
                f"cannot call {self._url}{path}: no answer within {limit_s:g} s; check that the service is healthy",
                code="service.timeout",
            ) from None

    async def _post(self, path: str, data: bytes) -> Any:
        import aiohttp

        if self._session is None:
            raise InvalidInput(
                f"cannot call {self._url}: the client is not open; open it with `async with`", code="service.not_open"
            )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(
                self._url + path, data=BytesIO(data), headers=headers, timeout=timeout
            ) as response:
                answer = await _bounded(response.content.iter_chunked(2**16))
                return _parsed(answer, response.status, self._url + path)
        except (aiohttp.ClientError, ConnectionError, OSError) as problem:
            raise Unavailable(
                f"cannot call {self._url}{path}: {type(problem).__name__}: {problem}; check address and network",
                code="service.unreachable",
            ) from problem


async def _bounded(chunks: AsyncIterator[bytes]) -> bytes:
    answer = bytearray()
    async for chunk in chunks:
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise Unavailable(
                f"cannot use the answer of the service: it has more than {MAX_ANSWER_BYTES} bytes; ask for less",
                code="service.answer_too_large",
            )
    return bytes(answer)


def _parsed(answer: bytes, status: int, url: str) -> Any:
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        value = None
    if status >= 400 or not isinstance(value, dict):
        error = value if isinstance(value, dict) else {}
        message = str(error.get("message") or f"status {status}: {answer[:_MAX_ERROR_CHARACTERS]!r}")
        raise JsonRefused(
            message[: 2 * _MAX_ERROR_CHARACTERS], status=status, code=str(error.get("code") or "service.refused")[:120]
        )
    return value


def _endpoint(handler: Handler, token: str) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def answer(request: Request) -> JSONResponse:
        try:
            _check_token(request, token)
            return JSONResponse(dict(await handler(await _body(request))))
        except NotAuthenticated as problem:
            return _error(401, problem)
        except InvalidInput as problem:
            return _error(422, problem)
        except AstraFlowError as problem:
            return _error(503, problem)
        except Exception as problem:  # the client gets an answer; the log has the traceback
            log.exception("request_failed", path=request.url.path)
            text = f"{type(problem).__name__}: {problem}"[:_MAX_ERROR_CHARACTERS]
            return JSONResponse({"code": "internal_error", "message": text}, status_code=500)

    return answer


def _error(status: int, problem: AstraFlowError) -> JSONResponse:
    return JSONResponse({"code": problem.code, "message": str(problem)}, status_code=status)


def _check_token(request: Request, token: str) -> None:
    presented = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token and not hmac.compare_digest(presented.encode(), token.encode()):
        raise NotAuthenticated(
            "cannot use the service: the token is missing or wrong; send `Authorization: Bearer TOKEN`",
            code="service.wrong_token",
        )


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_REQUEST_BYTES:
            raise InvalidInput(
                f"cannot read the request: it has more than {MAX_REQUEST_BYTES} bytes; send less",
                code="service.request_too_large",
            )
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(
            f"cannot read the request: not JSON: {problem}; correct it", code="service.not_json"
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(
            "cannot read the request: it is not a JSON object; send an object", code="service.not_an_object"
        )
    return value
