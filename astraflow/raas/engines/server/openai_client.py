"""Client of a server of another party: repeats refused and cut requests, and explains their failures."""

import os
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, TypeVar

from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, RateLimited, Unavailable
from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.engines.server.formats import parse_metrics
from astraflow.raas.engines.server.http import ServerClient, ServerRefused, ServerUnreachable
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

_T = TypeVar("_T")

_FIRST_BACKOFF_S = 0.5


class OpenAIClient:
    """Client of `/v1` routes.

    Its calls raise InvalidInput and NotAuthenticated when the server refuses the request, RateLimited and Unavailable
    when it still does after all attempts.
    """

    def __init__(
        self, base_url: str, *, key: str, key_variable: str, attempts: int, max_backoff_s: float, clock: Clock
    ) -> None:
        """base_url: with or without a final `/v1`. key: empty without one; `key_variable` had it, for messages.

        attempts: of a request, 1 or more. max_backoff_s: longest wait before the next attempt, in seconds.
        """
        self._client = ServerClient(base_url.rstrip("/").removesuffix("/v1"), key=key)
        self._base_url = base_url
        self._key_variable = key_variable
        self._attempts = attempts
        self._max_backoff_s = max_backoff_s
        self._clock = clock

    async def get(self, path: str, *, limit_s: float) -> str:
        """Returns the body of a GET request."""
        answer = await self._with_retries(lambda: self._client.get(path, limit_s=limit_s))
        return answer.decode(errors="replace")

    async def post(self, path: str, body: Mapping[str, Any], *, limit_s: float) -> Any:
        """Returns the JSON answer to a POST request."""
        return await self._with_retries(lambda: self._client.post(path, body, limit_s=limit_s))

    async def gauges(self) -> EngineGauges | None:
        """Returns the load by `/metrics`; None while it is unknown. Raises: ServerRefused for a server without them."""
        try:
            text = (await self._client.get("/metrics", limit_s=5.0)).decode(errors="replace")
            prefix = next((prefix for prefix in ("vllm:", "sglang:") if prefix in text), None)
            return parse_metrics(text, prefix=prefix).gauges if prefix else None
        except (ServerUnreachable, TimeoutError, ValueError):  # ValueError: a line in another format
            return None

    async def close(self) -> None:
        """Closes all connections; requests in flight fail."""
        await self._client.close()

    async def _with_retries(self, send: Callable[[], Awaitable[_T]]) -> _T:
        """Returns the answer; repeats a request that was refused for load or cut, which returned nothing yet."""
        backoff_s = _FIRST_BACKOFF_S
        for attempt in count(1):
            try:
                return await send()
            except (ServerRefused, ServerUnreachable, TimeoutError) as problem:
                failure = self._failure(problem)
                if attempt >= self._attempts or not isinstance(failure, RateLimited | Unavailable):
                    raise failure from problem
                retry_after_s = problem.retry_after_s if isinstance(problem, ServerRefused) else None
                wait_s = min(self._max_backoff_s, backoff_s if retry_after_s is None else retry_after_s)
            log.info("engine_request_repeated", server=self._base_url, attempt=attempt, wait_s=wait_s)
            await self._clock.sleep(wait_s)
            backoff_s *= 2
        raise AssertionError

    def _failure(self, problem: ServerRefused | ServerUnreachable | TimeoutError) -> AstraFlowError:
        """Returns the error that a caller gets."""
        where, detail = self._base_url, str(problem)
        if isinstance(problem, ServerRefused):
            if problem.status in (401, 403):
                variable = self._key_variable or "nothing: set key_variable"
                return NotAuthenticated(
                    f"cannot use the server at {where!r}: it refused the key from {variable}; set the variable on the "
                    "node to a valid key",
                    code="engine.key_refused",
                )
            if problem.status in (429, 503):
                return RateLimited(
                    f"cannot use the server at {where!r}: it is overloaded, after {self._attempts} attempts; "
                    "reduce the capacity of the node or add servers",
                    code="engine.overloaded",
                )
            if problem.status < 500:
                return InvalidInput(
                    f"cannot use the server at {where!r}: it refused the request: {detail}; check its model, context "
                    "length and release",
                    code="engine.request_refused",
                )
        return Unavailable(
            f"cannot reach the server at {where!r}: {detail or type(problem).__name__}; check that it runs",
            code="engine.unreachable",
        )


def read_key(variable: str) -> str:
    """Returns the key in an environment variable; empty without a variable. Raises: InvalidInput when it is not set."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise InvalidInput(
            f"cannot use the engine server: the environment variable {variable} is not set on this node; set it to the "
            "key of the server",
            code="engine.key_missing",
        )
    return key
