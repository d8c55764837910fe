"""Follows the rule in pools that are to: its targets become plans like everybody's, through the same guard.

Without fresh advice nothing grows and nothing shrinks: what was lost is brought back, no more.
"""

import math

from astraflow.contract.advice import Mode
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import KillScope, Plan, PlanRequest, PoolSpec, Verdict
from astraflow.contract.ids import PoolId
from astraflow.runtime.logs import get_logger
from maintainer.fleet import spending
from maintainer.fleet.desk import Desk
from maintainer.fleet.fleet import ITSELF, Fleet
from maintainer.fleet.guard import FOLLOWING
from maintainer.fleet.ledger import Changes, Ledger
from maintainer.fleet.records import PoolRecord

log = get_logger()

BACK = "it brings back what was lost"


class Follower:
    """One for the service."""

    def __init__(self, fleet: Fleet, desk: Desk) -> None:
        self._fleet = fleet
        self._desk = desk
        self._objections: dict[PoolId, str] = {}
        """What the guard said last: the journal has it once, not at every look."""

    async def follow(self) -> None:
        """Once, over every pool; not for a complete run, nor before dataflow has told which nodes there are."""
        seen = self._fleet.observation
        if self._fleet.kill is KillScope.ALL or seen.age_s is None or seen.is_run_complete:
            return
        for pool in tuple(self._fleet.ledger.pools.values()):
            if pool.spec.mode in FOLLOWING:
                try:
                    await self._follow(pool)
                except AstraFlowError as problem:
                    log.warning("not_followed", pool=pool.spec.id, problem=str(problem))

    async def _follow(self, pool: PoolRecord) -> None:
        target, reason = await self._wanted(pool)
        size = self._fleet.size(pool.spec.id)
        is_as_wanted = target == pool.target or pool.spec.mode is Mode.UP_ONLY or target > pool.spec.max_nodes
        if target == size and is_as_wanted:
            self._objections.pop(pool.spec.id, None)
            return
        if target < size and pool.spec.mode is Mode.UP_ONLY:
            return
        plan = await self._desk.plans.make(PlanRequest(pool=pool.spec.id, actor=ITSELF, reason=reason, target=target))
        if plan.verdict is Verdict.ALLOWED:
            await self._desk.apply(plan.id, key=f"follow:{plan.id}")
            self._objections.pop(pool.spec.id, None)
        else:
            await self._note(plan)

    async def _wanted(self, pool: PoolRecord) -> tuple[int, str]:
        """The size that the rule wants, as far as bounds and money let it; what the pool has lost, without the rule."""
        advice = self._fleet.observation.advice(pool.spec.id)
        target, reason = (pool.target, BACK) if advice is None else (advice.target, advice.reason)
        size = self._fleet.size(pool.spec.id)
        if advice is None and target < size:
            return size, reason
        within = min(max(target, pool.spec.min_nodes), pool.spec.max_nodes)
        if advice is not None and size < within == pool.target:  # the rule wants what it wanted before
            reason = BACK
        affordable = size + await self._affordable(pool.spec) if within > size else within
        # Nodes that joined by hand stay, also where they are more than the rule or the bounds want.
        return max(min(within, affordable), self._fleet.unmanaged(pool.spec.id)), reason or "the rule's target"

    async def _affordable(self, spec: PoolSpec) -> int:
        """How many more the pool's price per hour allows."""
        if spec.usd_per_hour_max is None:
            return spec.max_nodes
        price = await self._desk.plans.price(spec)
        spent = spending.rate(self._fleet.ledger.alive(spec.id))
        return max(0, math.floor((spec.usd_per_hour_max - spent) / price + 1e-9)) if price > 0 else spec.max_nodes

    async def _note(self, plan: Plan) -> None:
        fleet, pool = self._fleet, plan.request.pool
        codes = ", ".join(finding.code for finding in plan.findings)
        if self._objections.get(pool) == codes:
            return
        self._objections[pool] = codes
        message = f"{plan.target} nodes: " + "; ".join(finding.message for finding in plan.findings)

        def decide(_: Ledger) -> tuple[Changes, None]:
            decision = fleet.decision(
                "refuse",
                pool=pool,
                actor=ITSELF,
                reason=plan.request.reason,
                message=message,
                findings=plan.findings,
            )
            return Changes(decisions=(decision,)), None

        await fleet.ledger.change(decide)
