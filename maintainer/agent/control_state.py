"""Control state (mode and kill switch) as last received, and how it stops a wake."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from astraflow.contract.fleet.maintainer import MaintainerControlState, MaintainerMode
from astraflow.contract.fleet.pools import KillScope
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

T = TypeVar("T")

MAX_CONTROL_STATE_AGE_S = 10.0
"""Age of the control state beyond which nothing is started: it may have changed. Seconds."""


class ControlMonitor:
    """Monitors the control state. Until one is received, nothing may be done."""

    def __init__(self, initial_mode: MaintainerMode, clock: Clock) -> None:
        """initial_mode: mode that is reported before a control state is received."""
        self._initial_mode = initial_mode
        self._clock = clock
        self._received_at: float | None = None
        self._stopped = asyncio.Event()
        """Set while the control state forbids work."""
        self._handled_wakes: int | None = None
        """Wake requests that were known at the start or handled since. Count; None before the first control state."""
        self.control_state = MaintainerControlState(mode=MaintainerMode.OFF, kill=KillScope.NONE)

    @property
    def mode(self) -> MaintainerMode:
        """Mode in effect."""
        return self._initial_mode if self._received_at is None else self.control_state.mode

    @property
    def may_act(self) -> bool:
        """True while people allow the maintainer to act."""
        return self.control_state.may_act and self.control_state.mode is not MaintainerMode.OFF

    @property
    def is_stale(self) -> bool:
        """True if no control state was received recently."""
        return self._received_at is None or self._clock.now() - self._received_at > MAX_CONTROL_STATE_AGE_S

    def update(self, control_state: MaintainerControlState) -> bool:
        """Stores a received control state; returns whether mode or kill switch changed."""
        same = replace(control_state, wake_requests=self.control_state.wake_requests)
        is_changed = same != self.control_state or self._received_at is None
        known = control_state.wake_requests if self._handled_wakes is None else self._handled_wakes
        self._handled_wakes = min(known, control_state.wake_requests)  # a restarted fleet service counts from 0
        self.control_state, self._received_at = control_state, self._clock.now()
        if self.may_act:
            self._stopped.clear()
        else:
            self._stopped.set()
        if is_changed:
            log.info("control_state_changed", mode=control_state.mode.value, kill=control_state.kill.value)
        return is_changed

    def take_wake_request(self) -> bool:
        """Returns whether people requested a wake since the last call."""
        requests, handled = self.control_state.wake_requests, self._handled_wakes
        if handled is None or requests <= handled:
            return False
        self._handled_wakes = requests
        return True

    async def run_until_stopped(self, work: Awaitable[T]) -> T | None:
        """Awaits `work`; returns its result, or None when the control state stopped it."""
        work_task = asyncio.ensure_future(work)
        stop_task = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({work_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            if work_task.done():
                return work_task.result()
            log.warning("wake_stopped", mode=self.control_state.mode.value, kill=self.control_state.kill.value)
            return None
        finally:
            work_task.cancel()
            stop_task.cancel()
            await asyncio.gather(work_task, stop_task, return_exceptions=True)
