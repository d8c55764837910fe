"""Applies the rule's targets in automatic pools, as plans that pass the same guard as all others.

Without a current recommendation, pools neither grow nor shrink; only lost nodes are replaced.
"""

import math

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.plans import Plan, PlanRequest, Verdict
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.runtime.logs import get_logger
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.guard.guard import AUTOMATIC_MODES
from maintainer.fleet.ledger.records import PoolRecord, spending_rate
from maintainer.fleet.ledger.transitions import losses
from maintainer.fleet.state.fleet import FLEET_ACTOR, FleetState
from maintainer.fleet.state.fleet_records import FleetRecords

log = get_logger()

REPLACEMENT_REASON = "replacement of lost nodes"
START_REASON = "nodes that the target lacks"
"""Reason where no node was lost, as for the first launch of a pool."""


class Follower:
    """Applies the rule's targets. One instance per service."""

    def __init__(self, fleet: FleetState, manager: FleetManager) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._manager = manager
        self._recorded_refusals: dict[PoolId, str] = {}
        """Latest refusal by pool, so that the audit log has it once and not at every call."""

    async def follow(self) -> None:
        """Follows the rule once in every pool; not for a complete run, nor before the first report."""
        observation = self._fleet.observation
        if self._fleet.kill is KillScope.ALL or observation.age_s is None or observation.is_run_complete:
            return
        for pool in tuple(self._fleet.ledger.pools.values()):
            if pool.spec.mode in AUTOMATIC_MODES:
                try:
                    await self._follow(pool)
                except AstraFlowError as problem:
                    log.warning("rule_not_applied", pool=pool.spec.id, problem=str(problem))

    async def _follow(self, pool: PoolRecord) -> None:
        target, reason = await self._target(pool)
        size = self._fleet.size(pool.spec.id)
        if target == size and self._is_settled(pool, target):
            self._recorded_refusals.pop(pool.spec.id, None)
            return
        if target < size and pool.spec.mode is Mode.UP_ONLY:
            return
        drafted = await self._manager.plans.draft(
            PlanRequest(pool=pool.spec.id, actor=FLEET_ACTOR, reason=reason, target=target)
        )
        if drafted.plan.verdict is Verdict.ALLOWED:
            await self._manager.apply(drafted, key=f"follow:{drafted.plan.id}")
            self._recorded_refusals.pop(pool.spec.id, None)
        else:
            await self._record_refusal(drafted.plan)

    def _is_settled(self, pool: PoolRecord, size: int) -> bool:
        """Returns whether a pool of this size needs no plan.

        Without a recommendation the last target stays: a manually started node that left again is not replaced.
        """
        is_advised = self._fleet.observation.recommendation(pool.spec.id) is not None
        may_change = is_advised and pool.spec.mode is not Mode.UP_ONLY and size <= pool.spec.max_nodes
        return size == pool.target or not may_change

    async def _target(self, pool: PoolRecord) -> tuple[int, str]:
        """Returns the rule's target within bounds and budget; without a recommendation, the size before losses."""
        recommendation = self._fleet.observation.recommendation(pool.spec.id)
        target, reason = (
            (pool.target, self._missing_reason(pool))
            if recommendation is None
            else (recommendation.target, recommendation.reason)
        )
        size = self._fleet.size(pool.spec.id)
        if recommendation is None and target < size:
            # Adopted instances can exceed the bounds.
            return min(size, max(pool.spec.max_nodes, self._fleet.unmanaged(pool.spec.id))), "the pool's bounds"
        bounded = min(max(target, pool.spec.min_nodes), pool.spec.max_nodes)
        if recommendation is not None and size < bounded == pool.target:  # the rule's target is unchanged
            reason = self._missing_reason(pool)
        affordable = size + await self._affordable(pool.spec) if bounded > size else bounded
        # Manually started nodes stay, even beyond the rule's target or the bounds.
        return max(min(bounded, affordable), self._fleet.unmanaged(pool.spec.id)), reason or "the rule's target"

    def _missing_reason(self, pool: PoolRecord) -> str:
        lost = losses(self._fleet.ledger.of_pool(pool.spec.id), now=self._fleet.clock.wall())
        return REPLACEMENT_REASON if lost else START_REASON

    async def _affordable(self, spec: PoolSpec) -> int:
        """Returns how many further nodes the pool's hourly budget allows."""
        if spec.usd_per_hour_max is None:
            return spec.max_nodes
        price = await self._manager.plans.price(spec)
        spent = spending_rate(self._fleet.ledger.billed(spec.id))
        return max(0, math.floor((spec.usd_per_hour_max - spent) / price + 1e-9)) if price > 0 else spec.max_nodes

    async def _record_refusal(self, plan: Plan) -> None:
        pool = plan.request.pool
        codes = ", ".join(finding.code.value for finding in plan.findings)
        if self._recorded_refusals.get(pool) == codes:
            return
        self._recorded_refusals[pool] = codes
        message = f"{plan.target} nodes: " + "; ".join(finding.message for finding in plan.findings)

        await self._records.add_decision(
            RecordKind.REFUSE,
            {"text": message},
            pool=pool,
            actor=FLEET_ACTOR,
            reason=plan.request.reason,
            findings=plan.findings,
        )
