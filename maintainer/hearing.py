"""What people want of the maintainer, as it was heard last, and how it stops when they say so."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from astraflow.contract.fleet import KillScope
from astraflow.contract.maintenance import MaintainerMode, MaintainerOrders
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

T = TypeVar("T")

DEAF_S = 10.0
"""Without an answer for so long nothing is begun: orders may have changed."""


class Ear:
    """One for the process. Until something was heard, nothing may be done."""

    def __init__(self, first: MaintainerMode, clock: Clock) -> None:
        """first: the mode that it says it is in before people have said one."""
        self._first = first
        self._clock = clock
        self._heard_at: float | None = None
        self._stopped = asyncio.Event()
        """Set while people do not let it go on."""
        self.orders = MaintainerOrders(mode=MaintainerMode.OFF, kill=KillScope.NONE)

    @property
    def mode(self) -> MaintainerMode:
        """The one it goes by."""
        return self._first if self._heard_at is None else self.orders.mode

    @property
    def may_act(self) -> bool:
        """Whether people let it do anything."""
        return self.orders.may_act and self.orders.mode is not MaintainerMode.OFF

    @property
    def is_deaf(self) -> bool:
        """Whether nothing has been heard lately."""
        return self._heard_at is None or self._clock.now() - self._heard_at > DEAF_S

    def take(self, orders: MaintainerOrders) -> bool:
        """These were heard; returns whether they are news."""
        is_news = orders != self.orders or self._heard_at is None
        self.orders, self._heard_at = orders, self._clock.now()
        if self.may_act:
            self._stopped.clear()
        else:
            self._stopped.set()
        if is_news:
            log.info("orders", mode=orders.mode.value, kill=orders.kill.value)
        return is_news

    async def until_stopped(self, work: Awaitable[T]) -> T | None:
        """What came of it; None when people stopped it."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            log.warning("stopped", mode=self.orders.mode.value, kill=self.orders.kill.value)
            return None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
