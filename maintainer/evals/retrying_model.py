"""Model with retries for an evaluation: waits for a slow or overloaded service, and gives up with a reason.

A run does not wait: the maintainer backs off and the rule continues. In virtual time a backoff ends at once, so an
unreachable model would be scored as one that does nothing.
"""

import asyncio
from dataclasses import replace

from astraflow.runtime.clock import Clock
from maintainer.agent.llm.interface import Failure, Llm, ModelFailed, Reply, Request, Usage

RETRIED_FAILURES = frozenset(
    {Failure.RATE_LIMITED, Failure.OVERLOADED, Failure.TIMEOUT, Failure.CONNECTION, Failure.DROPPED, Failure.SERVER}
)
"""Failures that a retry may resolve."""
PERMANENT_FAILURES = frozenset({Failure.AUTH, Failure.INVALID})
"""Failures that no retry resolves. All other failures are the model's own, and are scored."""
MAX_ATTEMPTS = 6
FIRST_BACKOFF_S, MAX_BACKOFF_S = 2.0, 120.0
TURN_TIMEOUT_S = 300.0
"""Timeout of one turn, seconds."""


class RetryingModel:
    """Wraps a model and retries failures of its service."""

    def __init__(self, llm: Llm, clock: Clock) -> None:
        self._llm = llm
        self._clock = clock
        self.model = llm.model
        self.is_simulated = llm.is_simulated
        self.gave_up: ModelFailed | None = None
        """Reason for giving up; afterwards the model is not called again."""

    async def reply(self, request: Request) -> Reply:
        """Returns the model's turn, with the usage of failed attempts added. Raises: ModelFailed."""
        if self.gave_up is not None:
            raise self.gave_up
        pause_s, failed_usage = FIRST_BACKOFF_S, Usage()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                reply = await self._try_reply(request)
                return replace(reply, usage=reply.usage + failed_usage)
            except ModelFailed as problem:
                failed_usage += problem.usage or Usage()
                if problem.failure not in RETRIED_FAILURES | PERMANENT_FAILURES:
                    raise
                if problem.failure in PERMANENT_FAILURES or attempt == MAX_ATTEMPTS:
                    self.gave_up = problem
                    raise
                await self._clock.sleep(max(pause_s, problem.retry_after_s or 0.0))
                pause_s = min(2 * pause_s, MAX_BACKOFF_S)
        raise AssertionError("the last attempt returns or raises")

    async def _try_reply(self, request: Request) -> Reply:
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                return await self._llm.reply(request)
        except TimeoutError:
            raise ModelFailed(Failure.TIMEOUT, f"no answer within {TURN_TIMEOUT_S:.0f} s") from None

    def usd(self, usage: Usage) -> float:
        """Cost by the model's prices, US dollars."""
        return self._llm.usd(usage)

    async def close(self) -> None:
        """Closes the model."""
        await self._llm.close()
