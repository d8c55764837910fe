"""Tells dataflow what the fleet may and would do: bounds, modes, holds, the kill switch, money, prices, delays.

The rule's advice keeps to it, and says which of these holds it back. It is told again and again, because dataflow
forgets it after a minute without a word: a fleet service that is away bounds nothing.
"""

from astraflow.contract.advice import FleetTerms, PoolTerms
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import KillScope, PoolSpec
from astraflow.contract.ids import PoolId
from astraflow.runtime.logs import get_logger
from maintainer.fleet import spending
from maintainer.fleet.desk import Desk
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.observation import Steering
from maintainer.fleet.providers.base import ProviderError
from maintainer.fleet.records import PoolRecord

log = get_logger()

QUOTE_S = 60.0
"""A price is asked for again after so long: a provider may have to call its cloud for it."""


class Teller:
    """One for the service."""

    def __init__(self, fleet: Fleet, desk: Desk, steering: Steering) -> None:
        self._fleet = fleet
        self._desk = desk
        self._steering = steering
        self._prices: dict[PoolId, tuple[PoolSpec, float, float]] = {}
        """Spec that it was asked for, when, and US dollars an hour."""
        self._trouble = ""

    async def tell(self) -> None:
        """Once. Dataflow may be away: it is told the next time."""
        try:
            await self._steering.tell_terms(await self.terms())
        except AstraFlowError as problem:
            if str(problem) != self._trouble:
                log.warning("terms_not_told", problem=str(problem))
            self._trouble = str(problem)
        else:
            self._trouble = ""

    async def terms(self) -> FleetTerms:
        """As they are now."""
        fleet = self._fleet
        everything = fleet.ledger.records.values()
        return FleetTerms(
            pools=tuple([await self._of_pool(pool) for _, pool in sorted(fleet.ledger.pools.items())]),
            is_killed=fleet.kill is KillScope.ALL,
            dollars_per_hour_max=fleet.limits.usd_per_hour_max,
            dollars_per_day_max=fleet.limits.usd_per_day_max,
            dollars_today=spending.today(everything, now=fleet.clock.wall()),
        )

    async def _of_pool(self, pool: PoolRecord) -> PoolTerms:
        spec, view = pool.spec, self._fleet.view(pool)
        return PoolTerms(
            pool=spec.id,
            mode=spec.mode,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
            is_spot=spec.is_spot,
            price_per_hour=await self._price(spec),
            launch_delay_s=max(view.launch_delay_s, 0.1),
            is_held=view.hold_until is not None,
            dollars_per_hour_max=spec.usd_per_hour_max,
            dollars_per_day_max=spec.usd_per_day_max,
            nodes=sum(view.nodes.values()),
            dollars_per_hour=view.usd_per_hour,
            dollars_today=view.usd_today,
            failures=pool.failures if view.breaker_until is not None else 0,
            shut_until=view.breaker_until,
        )

    async def _price(self, spec: PoolSpec) -> float:
        """Of one more machine; what the latest costs while the provider does not say."""
        now = self._fleet.clock.now()
        known = self._prices.get(spec.id)
        if known is None or known[0] != spec or now - known[1] > QUOTE_S:
            try:
                known = (spec, now, await self._desk.plans.price(spec))
            except ProviderError as problem:
                log.warning("no_price", pool=spec.id, problem=str(problem))
                latest = max(self._fleet.instances(spec.id), key=lambda one: one.intended_at, default=None)
                known = (spec, now, latest.usd_per_hour if latest is not None else 0.0)
            self._prices[spec.id] = known
        return known[2]
