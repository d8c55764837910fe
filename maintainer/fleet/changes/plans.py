"""Plans: effects of proposed changes, computed without side effects and stored until applied or expired."""

from dataclasses import dataclass, replace

from astraflow.contract.errors import Conflict
from astraflow.contract.fleet.plans import Plan, PlanId, PlanRequest, Violation
from astraflow.contract.fleet.pools import PoolSpec
from maintainer.fleet.changes.planning import SizeChange, plan_size_change
from maintainer.fleet.changes.run_changes import RunChanges
from maintainer.fleet.guard import guard
from maintainer.fleet.guard.guard import is_replacement
from maintainer.fleet.guard.inputs import GuardInputs
from maintainer.fleet.guard.rules import verdict
from maintainer.fleet.ledger.records import PoolRecord
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Quote, Tags
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.idempotency import require_pool_access

MAX_PLANS = 1000

NO_QUOTE = Quote(usd_per_hour=0.0, launch_delay_s=0.0, source="a change of the run")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAssessment:
    """Assessment of a request against the current state of the pool."""

    size_change: SizeChange
    findings: tuple[Violation, ...]
    is_replacement: bool
    """The plan only replaces lost nodes and does not count as a change."""
    evidence: GuardInputs
    hold_s: float
    """Duration of the hold that the plan sets. Seconds; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedPlan:
    """A plan, and the quote on which it is based."""

    plan: Plan
    quote: Quote


class Plans:
    """Recent plans, by id."""

    def __init__(self, fleet: FleetState, run_changes: RunChanges) -> None:
        self._fleet = fleet
        self._run_changes = run_changes
        self._plans: dict[PlanId, DraftedPlan] = {}

    async def make(self, request: PlanRequest) -> Plan:
        """Returns a plan for a request and stores it until it is applied or expires. Raises: as `draft`."""
        drafted = await self.draft(request)
        self._store(drafted)
        return drafted.plan

    def _store(self, drafted: DraftedPlan) -> None:
        """Stores a plan; the oldest one is removed beyond `MAX_PLANS`, but none that waits for approval."""
        self._plans[drafted.plan.id] = drafted
        excess = max(0, len(self._plans) - MAX_PLANS)
        waiting = self._fleet.ledger.waiting_proposals
        for plan_id in [plan_id for plan_id in self._plans if plan_id not in waiting][:excess]:
            del self._plans[plan_id]

    async def draft(self, request: PlanRequest) -> DraftedPlan:
        """Returns a plan for a request and its quote, without changing or storing anything.

        Raises: InvalidInput for an unknown pool or instance; NotPermitted for an actor of another pool; ProviderError
        when the provider gives no price.
        """
        if request.run is not None:
            return DraftedPlan(plan=await self._run_changes.draft(request), quote=NO_QUOTE)
        require_pool_access(request.actor, request.pool)
        fleet = self._fleet
        pool = fleet.pool(request.pool)
        quote = await fleet.provider(pool.spec.provider).quote(self.launch(pool.spec))
        pool = fleet.pool(request.pool)  # it may have changed during the call
        assessment = self.assess(request, pool, quote)
        change, findings = assessment.size_change, assessment.findings
        now = fleet.clock.wall()
        plan = Plan(
            id=PlanId(fleet.launch_ids.next(now)),
            request=request,
            observed_version=pool.version,
            nodes=change.nodes,
            target=change.target,
            launches=change.launches,
            victims=tuple(victim.id for victim in change.victims),
            eta_s=self._eta_s(pool.spec, change, is_kill=request.is_kill),
            usd_per_hour_change=_usd_change(change, quote),
            verdict=verdict(findings),
            findings=findings,
            created_at=now,
            expires_at=now + fleet.config.times.plan_valid_s,
            rule_target=assessment.evidence.situation.rule_target,
            hold_s=assessment.hold_s,
            guard_json=assessment.evidence.to_json(),
        )
        return DraftedPlan(plan=plan, quote=quote)

    async def price(self, spec: PoolSpec) -> float:
        """Returns the price of a further instance. US dollars an hour. Raises: ProviderError."""
        return (await self._fleet.provider(spec.provider).quote(self.launch(spec))).usd_per_hour

    def known(self, plan_id: PlanId) -> Plan | None:
        """Returns a plan that can still be applied; None for an unknown or expired one."""
        drafted = self._plans.get(plan_id)
        is_valid = drafted is not None and drafted.plan.expires_at >= self._fleet.clock.wall()
        return drafted.plan if drafted is not None and is_valid else None

    def extend(self, plan_id: PlanId, *, until: float) -> Plan:
        """Extends a plan's validity for approval by a person. Raises: Conflict for an unknown plan."""
        drafted = self.get(plan_id)
        extended = replace(drafted.plan, expires_at=max(drafted.plan.expires_at, until))
        self._plans[plan_id] = replace(drafted, plan=extended)
        return extended

    def discard(self, plan_id: PlanId) -> None:
        """Removes a plan, so that it cannot be applied."""
        self._plans.pop(plan_id, None)

    def get(self, plan_id: PlanId) -> DraftedPlan:
        """Returns a plan that can still be applied, with its quote. Raises: Conflict."""
        if self.known(plan_id) is None:
            raise Conflict(
                f"cannot apply plan {plan_id}: it is unknown or expired; plan again and apply within 5 minutes",
                code="fleet.unknown_plan",
            )
        return self._plans[plan_id]

    def assess(self, request: PlanRequest, pool: PoolRecord, quote: Quote) -> PlanAssessment:
        """Assesses a request against the current state of the pool."""
        recommendation = self._fleet.observation.recommendation(pool.spec.id)
        change = plan_size_change(
            request,
            self._fleet.instances(pool.spec.id),
            preferred_victims=recommendation.victims if recommendation is not None else (),
            speeds=self._fleet.observation.speeds(),
            unmanaged=self._fleet.unmanaged(pool.spec.id),
        )
        proposal = guard.ProposedChange(
            actor=request.actor,
            target=change.target,
            launches=change.launches,
            victims=change.victims,
            usd_per_hour_change=_usd_change(change, quote),
            is_kill=request.is_kill,
            is_named=bool(request.retire),
        )
        situation = self._fleet.situation(pool)
        limits, delay_s = self._fleet.limits, self._fleet.launch_delay_s(pool.spec)
        evidence = GuardInputs(situation=situation, proposal=proposal, limits=limits)
        return PlanAssessment(
            size_change=change,
            findings=evidence.violations(),
            is_replacement=is_replacement(situation, proposal),
            evidence=evidence,
            hold_s=guard.hold_s(situation, proposal, limits, launch_delay_s=delay_s),
        )

    def _eta_s(self, spec: PoolSpec, change: SizeChange, *, is_kill: bool) -> float:
        up_s = self._fleet.launch_delay_s(spec) if change.launches else 0.0
        return max(up_s, spec.drain_s if change.victims and not is_kill else 0.0)

    def launch(self, spec: PoolSpec, *, usd_per_hour: float = 0.0) -> LaunchSpec:
        """Returns the launch request for a further instance of a pool."""
        fleet = self._fleet
        tags = Tags(
            cluster=fleet.cluster,
            pool=spec.id,
            run=fleet.run,
            expires_at=fleet.clock.wall() + fleet.config.times.max_age_s,
        )
        node = NodePlan(
            dataflow=fleet.join_address,
            engine=spec.engine,
            capacity=spec.capacity,
            policies=spec.policies,
            dataflow_timeout_s=fleet.config.times.dataflow_timeout_s,
            usd_per_hour=usd_per_hour,
        )
        return LaunchSpec(
            tags=tags,
            node=node,
            type=spec.type,
            region=spec.region,
            is_spot=spec.is_spot,
            options=spec.options,
        )


def _usd_change(change: SizeChange, quote: Quote) -> float:
    return change.launches * quote.usd_per_hour - sum(victim.usd_per_hour for victim in change.victims)
