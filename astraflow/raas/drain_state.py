"""Drain state of a node, set by dataflow, a preemption notice or a signal."""

import asyncio
from typing import Any

from astraflow.contract.nodes import Directive
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()


class DrainState:
    """State of a drain, once it is requested. The first reason stays; an earlier deadline replaces a later one.

    hand_back_s: seconds reserved for the hand-back before a deadline.
    """

    def __init__(self, clock: Clock, *, hand_back_s: float) -> None:
        self.draining = asyncio.Event()
        """Set when the node must stop leasing tasks."""
        self.reason = ""
        self.is_preempted = False
        """True after a preemption notice for the machine."""
        self._clock = clock
        self._hand_back_s = hand_back_s
        self._due_at: float | None = None
        """Clock time at which running tasks are handed back; None without a limit."""
        self._changed = asyncio.Event()

    def apply_directive(self, directive: Directive) -> None:
        """Applies a directive of dataflow; `continue_running` and unknown actions change nothing."""
        match directive.action:
            case "drain" if directive.deadline_s:
                self.drain_within(directive.deadline_s, directive.reason)
            case "drain":
                self._begin_drain(None, directive.reason)
            case "leave":
                self.finish_within(0, directive.reason)

    def drain_within(self, deadline_s: float, reason: str) -> None:
        """Starts a drain whose hand-back completes within `deadline_s` seconds."""
        self.finish_within(max(0.0, deadline_s - self._hand_back_s), reason)

    def preempt_within(self, deadline_s: float, reason: str) -> None:
        """Starts a drain because the machine is preempted in `deadline_s` seconds."""
        self.is_preempted = True
        self.drain_within(deadline_s, reason)

    def finish_within(self, limit_s: float, reason: str) -> None:
        """Starts a drain that hands back the tasks still running after `limit_s` seconds."""
        self._begin_drain(self._clock.now() + limit_s, reason)

    async def wait_until_due(self) -> None:
        """Waits until running tasks are to be handed back."""
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

    def _begin_drain(self, due_at: float | None, reason: str) -> None:
        if not self.draining.is_set():
            log.info("drain_started", reason=reason)
            self.reason = reason
            self.draining.set()
        if due_at is not None and (self._due_at is None or due_at < self._due_at):
            self._due_at = due_at
            self._changed.set()
            self._changed = asyncio.Event()

    def _left_s(self) -> float | None:
        return self._due_at - self._clock.now() if self._due_at is not None else None
