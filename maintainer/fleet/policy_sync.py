"""Reports the fleet's constraints to dataflow: bounds, modes, holds, kill switch, budgets, prices and delays.

The rule respects them and names the limits that apply. They are reported periodically, because dataflow drops them
after a minute without a report: a fleet service that is down limits nothing.
"""

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.recommendations import FleetConstraints, PoolConstraints
from astraflow.contract.ids import PoolId
from astraflow.runtime.logs import get_logger
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.ledger.records import PoolRecord, spent_today
from maintainer.fleet.providers.base import ProviderError
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.observation import DataflowControl

log = get_logger()

QUOTE_S = 60.0
"""Time for which a price is cached, because a provider may have to call its cloud for it."""


class PolicySync:
    """Reports constraints to dataflow. One instance per service."""

    def __init__(self, fleet: FleetState, manager: FleetManager, dataflow: DataflowControl) -> None:
        self._fleet = fleet
        self._manager = manager
        self._dataflow = dataflow
        self._prices: dict[PoolId, tuple[PoolSpec, float, float]] = {}
        """By pool: spec, time of the quote, and price in US dollars an hour."""
        self._last_problem = ""

    async def sync(self) -> None:
        """Reports the constraints once. While dataflow is down, the next call repeats it."""
        try:
            await self._dataflow.report_fleet_constraints(await self.constraints())
        except AstraFlowError as problem:
            if str(problem) != self._last_problem:
                log.warning("constraints_not_reported", problem=str(problem))
            self._last_problem = str(problem)
        else:
            self._last_problem = ""

    async def constraints(self) -> FleetConstraints:
        """Returns the current constraints."""
        fleet = self._fleet
        everything = fleet.ledger.records.values()
        return FleetConstraints(
            pools=tuple([await self._pool_constraints(pool) for _, pool in sorted(fleet.ledger.pools.items())]),
            is_kill_switch_on=fleet.kill is KillScope.ALL,
            dollars_per_hour_max=fleet.limits.usd_per_hour_max,
            dollars_per_day_max=fleet.limits.usd_per_day_max,
            dollars_today=spent_today(everything, now=fleet.clock.wall()),
        )

    async def _pool_constraints(self, pool: PoolRecord) -> PoolConstraints:
        spec, view = pool.spec, self._fleet.view(pool)
        return PoolConstraints(
            pool=spec.id,
            mode=spec.mode,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
            is_spot=spec.is_spot,
            price_per_hour=await self._price(spec),
            launch_delay_s=max(view.launch_delay_s, 0.1),
            is_held=view.hold_until_at is not None,
            dollars_per_hour_max=spec.usd_per_hour_max,
            dollars_per_day_max=spec.usd_per_day_max,
            nodes=sum(view.nodes.values()),
            dollars_per_hour=view.usd_per_hour,
            dollars_today=view.usd_today,
            failures=pool.failures if view.breaker_until is not None else 0,
            breaker_until=view.breaker_until,
        )

    async def _price(self, spec: PoolSpec) -> float:
        """Returns the price of a further instance; that of the latest one while the provider gives none."""
        now = self._fleet.clock.now()
        cached_price = self._prices.get(spec.id)
        if cached_price is None or cached_price[0] != spec or now - cached_price[1] > QUOTE_S:
            try:
                cached_price = (spec, now, await self._manager.plans.price(spec))
            except ProviderError as problem:
                log.warning("price_unavailable", pool=spec.id, problem=str(problem))
                latest = max(self._fleet.instances(spec.id), key=lambda instance: instance.intended_at, default=None)
                cached_price = (spec, now, latest.usd_per_hour if latest is not None else 0.0)
            self._prices[spec.id] = cached_price
        return cached_price[2]
