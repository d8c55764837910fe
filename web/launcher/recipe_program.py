"""Program that reads and checks recipes for the page: it stays, so that a check takes milliseconds, and ends when idle.

The page does not import recipes itself: their plugins import numpy, and some torch.
"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from astraflow.contract.errors import DeadlineExceeded, InvalidInput
from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes.requests import Loss, ProcessLost, RequestProcess
from web.launcher.environments import child_environment

log = get_logger()

ANSWERS_COMMAND = (sys.executable, "-m", "astraflow.cli.recipes.answers")
IDLE_S = 600.0
"""Time without a request after which the program ends: it takes 90 MB, and 400 MB with torch. Seconds."""
TIMEOUT_S = 60.0
"""Longest time for an answer. Seconds: the first one waits for the start of the program."""
_MAX_ANSWER_BYTES = 16 * 2**20


class RecipeProgram:
    """Program that answers requests about recipes, started with the first."""

    def __init__(self) -> None:
        self._process: RequestProcess | None = None
        self._starting = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def ask(self, request: Mapping[str, Any]) -> Any:
        """Returns the answer to a request. Raises: InvalidInput with the code of its problem, DeadlineExceeded."""
        process = await self._running()
        try:
            values = await process.request(request, limit_s=TIMEOUT_S)
        except ProcessLost as lost:
            raise _lost(lost) from None
        finally:
            self._end_later()
        if "problem" in values:
            kind = DeadlineExceeded if values.get("type") == DeadlineExceeded.__name__ else InvalidInput
            raise kind(values["problem"], code=values["code"])
        return values["answer"]

    async def close(self) -> None:
        """Ends the program. Idempotent; a later request starts it again."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def _running(self) -> RequestProcess:
        async with self._starting:
            if self._process is None or not self._process.is_usable:
                await self.close()
                try:
                    self._process = await RequestProcess.spawn_answering(
                        *ANSWERS_COMMAND, environment=child_environment(), max_answer_bytes=_MAX_ANSWER_BYTES
                    )
                except OSError as problem:
                    raise InvalidInput(
                        f"cannot read the recipes: their program does not start: {problem.strerror}; check the "
                        "installation",
                        code="recipe.program_lost",
                    ) from None
                log.info("recipe program started", pid=self._process.pid)
            return self._process

    def _end_later(self) -> None:
        """Ends the program after a time without requests."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self._process is not None and self._process.is_busy:
            self._end_later()
            return
        ending = asyncio.create_task(self.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def _lost(lost: ProcessLost) -> InvalidInput | DeadlineExceeded:
    if lost.loss is Loss.TIMEOUT:
        return DeadlineExceeded(
            f"cannot read the recipe: no answer within {TIMEOUT_S:g} s; try again", code="cli.timeout"
        )
    return InvalidInput(
        f"cannot read the recipe: its program ended ({lost}); try again, and see the log of the page",
        code="recipe.program_lost",
    )
