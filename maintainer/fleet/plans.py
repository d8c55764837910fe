"""What changes would do: made without a side effect, and remembered until they are applied or expire."""

from collections import OrderedDict
from dataclasses import dataclass, replace

from astraflow.contract.errors import Conflict
from astraflow.contract.fleet import Finding, Plan, PlanId, PlanRequest, PoolSpec
from maintainer.fleet import guard
from maintainer.fleet.evidence import Evidence
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.guard import is_replacement, verdict
from maintainer.fleet.planning import Shape, shape
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Quote, Tags
from maintainer.fleet.records import PoolRecord
from maintainer.fleet.replies import within

KEPT_PLANS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A request as the pool is at this moment."""

    shape: Shape
    findings: tuple[Finding, ...]
    is_replacement: bool
    """It counts as no change: what was lost comes back."""
    evidence: Evidence
    hold_s: float
    """For so long the pool is held with it; 0 for not at all."""


class Plans:
    """Those that were made lately."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._plans: OrderedDict[PlanId, tuple[Plan, Quote]] = OrderedDict()

    async def make(self, request: PlanRequest) -> Plan:
        """What a request would do; nothing happens.

        Raises: InvalidInput for an unknown pool or instance; NotPermitted for somebody of another pool; a provider's
        errors when it cannot be asked for a price.
        """
        within(request.actor, request.pool)
        fleet = self._fleet
        pool = fleet.pool(request.pool)
        quote = await fleet.provider(pool.spec.provider).quote(self.launch(pool.spec))
        pool = fleet.pool(request.pool)  # as it is after the wait
        judged = self.judged(request, pool, quote)
        shaped, findings = judged.shape, judged.findings
        now = fleet.clock.wall()
        plan = Plan(
            id=PlanId(fleet.launch_ids.next(now)),
            request=request,
            observed_version=pool.version,
            nodes=shaped.nodes,
            target=shaped.target,
            launches=shaped.launches,
            victims=tuple(victim.id for victim in shaped.victims),
            eta_s=self._eta_s(pool.spec, shaped, is_kill=request.is_kill),
            usd_per_hour_change=_usd_change(shaped, quote),
            verdict=verdict(findings),
            findings=findings,
            created_at=now,
            expires_at=now + fleet.config.times.plan_s,
            rule_target=judged.evidence.situation.rule_target,
            hold_s=judged.hold_s,
            guard_json=judged.evidence.to_json(),
        )
        self._plans[plan.id] = (plan, quote)
        while len(self._plans) > KEPT_PLANS:
            self._plans.popitem(last=False)
        return plan

    async def price(self, spec: PoolSpec) -> float:
        """US dollars an hour of one more machine of a pool. Raises: a provider's errors."""
        return (await self._fleet.provider(spec.provider).quote(self.launch(spec))).usd_per_hour

    def known(self, plan_id: PlanId) -> Plan | None:
        """A plan that can still be applied."""
        plan, _ = self._plans.get(plan_id, (None, None))
        return plan if plan is not None and plan.expires_at >= self._fleet.clock.wall() else None

    def extend(self, plan_id: PlanId, *, until: float) -> Plan:
        """Have a plan be good for longer: people take their time. Raises: Conflict for one that is not known."""
        plan, quote = self.found(plan_id)
        longer = replace(plan, expires_at=max(plan.expires_at, until))
        self._plans[plan_id] = (longer, quote)
        return longer

    def drop(self, plan_id: PlanId) -> None:
        """Have a plan be good no more."""
        self._plans.pop(plan_id, None)

    def found(self, plan_id: PlanId) -> tuple[Plan, Quote]:
        """A plan that can still be applied, and the price it was made with. Raises: Conflict."""
        now = self._fleet.clock.wall()
        if plan_id not in self._plans or self._plans[plan_id][0].expires_at < now:
            raise Conflict(f"plan {plan_id} is not known, or not any more: plan again and apply within 5 minutes")
        return self._plans[plan_id]

    def judged(self, request: PlanRequest, pool: PoolRecord, quote: Quote) -> Judged:
        """A request as the pool is at this moment."""
        advice = self._fleet.observation.advice(pool.spec.id)
        shaped = shape(
            request,
            self._fleet.instances(pool.spec.id),
            first=advice.victims if advice is not None else (),
            speeds=self._fleet.observation.speeds(),
            unmanaged=self._fleet.unmanaged(pool.spec.id),
        )
        proposal = guard.Proposal(
            actor=request.actor,
            target=shaped.target,
            launches=shaped.launches,
            victims=shaped.victims,
            usd_per_hour_change=_usd_change(shaped, quote),
            is_kill=request.is_kill,
            is_named=bool(request.retire),
        )
        situation = self._fleet.situation(pool)
        limits, delay_s = self._fleet.limits, self._fleet.launch_delay_s(pool.spec)
        evidence = Evidence(situation=situation, proposal=proposal, limits=limits)
        return Judged(
            shape=shaped,
            findings=evidence.findings(),
            is_replacement=is_replacement(situation, proposal),
            evidence=evidence,
            hold_s=guard.hold_s(situation, proposal, limits, launch_delay_s=delay_s),
        )

    def _eta_s(self, spec: PoolSpec, shaped: Shape, *, is_kill: bool) -> float:
        up_s = self._fleet.launch_delay_s(spec) if shaped.launches else 0.0
        return max(up_s, spec.drain_s if shaped.victims and not is_kill else 0.0)

    def launch(self, spec: PoolSpec, *, usd_per_hour: float = 0.0) -> LaunchSpec:
        """What a provider is asked for, for one more machine of a pool."""
        fleet = self._fleet
        tags = Tags(
            cluster=fleet.config.cluster,
            pool=spec.id,
            run=fleet.run,
            expires_at=fleet.clock.wall() + fleet.config.times.expires_s,
        )
        node = NodePlan(
            dataflow=fleet.join_address,
            engine=spec.engine,
            capacity=spec.capacity,
            dead_man_s=fleet.config.times.dead_man_s,
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


def _usd_change(shaped: Shape, quote: Quote) -> float:
    return shaped.launches * quote.usd_per_hour - sum(victim.usd_per_hour for victim in shaped.victims)
