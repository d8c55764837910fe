"""What a node was told about its own end: by dataflow, by a notice of preemption, or by a signal."""

import asyncio
from typing import Any

from astraflow.contract.nodes import Directive
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()


class Orders:
    """Go on, until told to drain or to leave. The first reason stays; a nearer limit replaces a later one.

    hand_back_s: what handing back is given: it begins that long before a deadline.
    """

    def __init__(self, clock: Clock, *, hand_back_s: float) -> None:
        self.ending = asyncio.Event()
        """Set when the node is to lease nothing more."""
        self.reason = ""
        self.is_taken = False
        """It was given notice: its machine is taken away."""
        self._clock = clock
        self._hand_back_s = hand_back_s
        self._due_at: float | None = None
        """When what still runs is to be handed back; None: never, it may take as long as it takes."""
        self._changed = asyncio.Event()

    def take(self, directive: Directive) -> None:
        """Obey dataflow; `go_on` and what a newer dataflow may say change nothing."""
        match directive.action:
            case "drain" if directive.deadline_s:
                self.be_gone_within(directive.deadline_s, directive.reason)
            case "drain":
                self._end(None, directive.reason)
            case "leave":
                self.finish_within(0, directive.reason)

    def be_gone_within(self, deadline_s: float, reason: str) -> None:
        """Finish what can be finished so that all is handed back by then."""
        self.finish_within(max(0.0, deadline_s - self._hand_back_s), reason)

    def be_taken_within(self, deadline_s: float, reason: str) -> None:
        """The same, because the machine is taken away then."""
        self.is_taken = True
        self.be_gone_within(deadline_s, reason)

    def finish_within(self, limit_s: float, reason: str) -> None:
        """Finish what runs, and hand back what is not done by then."""
        self._end(self._clock.now() + limit_s, reason)

    async def until_due(self) -> None:
        """Wait until what still runs is to be handed back."""
        while True:
            changed, left_s = self._changed, self._left_s()
            if left_s is not None and left_s <= 0:
                return
            waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(changed.wait())]
            if left_s is not None:
                waits.append(asyncio.ensure_future(self._clock.sleep(left_s)))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def _end(self, due_at: float | None, reason: str) -> None:
        if not self.ending.is_set():
            log.info("told_to_end", reason=reason)
            self.reason = reason
            self.ending.set()
        if due_at is not None and (self._due_at is None or due_at < self._due_at):
            self._due_at = due_at
            self._changed.set()
            self._changed = asyncio.Event()

    def _left_s(self) -> float | None:
        return self._due_at - self._clock.now() if self._due_at is not None else None
