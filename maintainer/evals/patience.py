"""A model behind a service that is slow or full at times: an evaluation waits for it, and gives up with a reason.

In a run nothing waits: the maintainer backs off and the rule carries on. In virtual time that would be over at once,
and a model that could not be reached would be scored as one that does nothing.
"""

import asyncio
from dataclasses import replace

from astraflow.runtime.clock import Clock
from maintainer.llm.base import Failure, Llm, ModelFailed, Reply, Request, Usage

OF_THE_SERVICE = frozenset(
    {Failure.RATE_LIMITED, Failure.OVERLOADED, Failure.TIMEOUT, Failure.CONNECTION, Failure.DROPPED, Failure.SERVER}
)
"""Another try may be answered."""
FOR_GOOD = frozenset({Failure.AUTH, Failure.INVALID})
"""No other try is: what is left of the failures is the model's own, and is scored."""
TRIES = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 120.0
TURN_S = 300.0
"""A turn that takes longer is one that failed."""


class Patient:
    """A model, and another try where its service failed."""

    def __init__(self, llm: Llm, clock: Clock) -> None:
        self._llm = llm
        self._clock = clock
        self.model = llm.model
        self.is_simulated = llm.is_simulated
        self.gave_up: ModelFailed | None = None
        """Why: from then on nothing is asked any more."""

    async def reply(self, request: Request) -> Reply:
        """The model's turn; what tries before it have used is counted with it. Raises: ModelFailed."""
        if self.gave_up is not None:
            raise self.gave_up
        pause_s, wasted = FIRST_PAUSE_S, Usage()
        for tried in range(1, TRIES + 1):
            try:
                reply = await self._asked(request)
                return replace(reply, usage=reply.usage + wasted)
            except ModelFailed as problem:
                wasted += problem.usage or Usage()
                if problem.failure not in OF_THE_SERVICE | FOR_GOOD:
                    raise
                if problem.failure in FOR_GOOD or tried == TRIES:
                    self.gave_up = problem
                    raise
                await self._clock.sleep(max(pause_s, problem.retry_after_s or 0.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _asked(self, request: Request) -> Reply:
        try:
            async with asyncio.timeout(TURN_S):
                return await self._llm.reply(request)
        except TimeoutError:
            raise ModelFailed(Failure.TIMEOUT, f"no answer within {TURN_S:.0f} s") from None

    def usd(self, usage: Usage) -> float:
        """What the model says."""
        return self._llm.usd(usage)

    async def close(self) -> None:
        """Let the model go."""
        await self._llm.close()
