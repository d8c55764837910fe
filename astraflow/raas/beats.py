"""Say once a second what the node does, and do what it is told."""

from collections.abc import Callable, Mapping

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import Unavailable, UnknownNode
from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.raas.capacity import Capacity
from astraflow.raas.counters import NodeCounters
from astraflow.raas.links import Links
from astraflow.raas.membership import PASSING, Membership
from astraflow.raas.orders import Orders
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()


class Beats:
    """Renews the leases of what the node holds, and brings its counters, errors and versions to dataflow."""

    def __init__(
        self,
        client: NodeDataClient,
        membership: Membership,
        *,
        held: Callable[[], tuple[TaskId, ...]],
        versions: Callable[[], Mapping[PolicyId, Version]],
        capacity: Capacity,
        counters: NodeCounters,
        links: Links,
        orders: Orders,
        clock: Clock,
    ) -> None:
        self._client = client
        self._membership = membership
        self._held = held
        self._versions = versions
        self._capacity = capacity
        self._counters = counters
        self._links = links
        self._orders = orders
        self._clock = clock
        self._answered_at = clock.now()

    async def run(self, every_s: float) -> None:
        """Beat until cancelled. Raises: what no retry helps; RunChanged."""
        await periodic(self.beat, every_s=every_s, clock=self._clock)

    async def beat(self) -> None:
        """Say it now."""
        status = self._status()
        try:
            directive = await self._client.beat(status)
        except UnknownNode:
            await self._membership.join_again(status.node)
        except PASSING as problem:
            log.warning("beat_missed", problem=str(problem))
        else:
            self._answered_at = self._clock.now()
            self._counters.was_reported(dict(status.counters))
            self._orders.take(directive)

    async def watch(self, dead_man_s: float) -> None:
        """Return never. Raises: Unavailable once no beat was answered for `dead_man_s`: nobody needs this node."""
        while True:
            left_s = self._answered_at + dead_man_s - self._clock.now()
            if left_s <= 0:
                raise Unavailable(f"dataflow has not answered for {dead_man_s:g} s (dead_man_s): this node ends")
            await self._clock.sleep(left_s)

    def _status(self) -> NodeStatus:
        busy_s, blocked_s = self._capacity.times()
        self._counters.set_total("busy_s", busy_s)
        self._counters.set_total("blocked_s", blocked_s)
        self._counters.observe_rate(self._clock.now())
        return NodeStatus(
            node=self._membership.node,
            running=self._held(),
            versions=self._versions(),
            counters=self._counters.counters(),
            gauges=self._counters.gauges(),
            errors=self._counters.errors(),
            ending=self._orders.reason,
            is_taken=self._orders.is_taken,
            links=self._links.reports(),
        )
