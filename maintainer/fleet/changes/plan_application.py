"""Ledger changes of an applied plan: intents, retirements, hold, audit log and reply."""

from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter

from astraflow.contract.fleet.decisions import AppliedChange
from astraflow.contract.fleet.instances import Cause, Instance, InstanceState
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanRequest, Verdict
from astraflow.contract.fleet.pools import PoolSpec
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render_summary
from astraflow.contract.values import Value, Values
from maintainer.fleet.changes.plans import PlanAssessment, Plans
from maintainer.fleet.guard.rules import verdict
from maintainer.fleet.ledger.ledger import Changes
from maintainer.fleet.ledger.lifecycle import InstanceEvent, next_state
from maintainer.fleet.ledger.records import LaunchRecord, PoolRecord
from maintainer.fleet.ledger.transitions import termination_cause
from maintainer.fleet.providers.base import Quote
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.fleet_records import FleetRecords
from maintainer.fleet.state.idempotency import IdempotentReplies

MIN_CHANGE_TIMES = 16
"""Times of changes that a pool keeps at least; more where the limits allow more changes within an hour."""

_APPLIED = TypeAdapter(AppliedPlan)


class PlanApplier:
    """Computes the ledger changes of a plan, inside `Ledger.change`. One instance per service."""

    def __init__(self, fleet: FleetState, plans: Plans, replies: IdempotentReplies) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._plans = plans
        self._replies = replies

    def changes(
        self,
        plan: Plan,
        pool: PoolRecord,
        assessment: PlanAssessment,
        quote: Quote,
        *,
        key: str,
        request_hash: str,
        approver: Actor | None,
        applier: Actor,
    ) -> tuple[Changes, AppliedPlan]:
        """Returns the ledger changes and the reply. assessment: of the plan, for the current state of the pool."""
        size_change, now = assessment.size_change, self._fleet.clock.wall()
        launched = [self._intent(pool.spec, plan.request, quote) for _ in range(size_change.launches)]
        order = InstanceEvent.RETIRE if plan.request.is_kill else InstanceEvent.DRAIN
        retired = [self._ordered(victim, order, plan.request) for victim in size_change.victims]
        proposal = self._fleet.ledger.waiting_proposals.get(plan.id)
        needs_approval = proposal is not None or verdict(assessment.findings) is Verdict.NEEDS_APPROVAL
        held = self._with_hold(pool, plan, assessment)
        kept_times = max(MIN_CHANGE_TIMES, self._fleet.limits.changes_per_hour)
        plan_approver = approver if needs_approval else None
        decision = self._records.decision(
            RecordKind.APPLY,
            _values(plan, assessment, plan_approver, applier),
            pool=pool.spec.id,
            actor=plan.request.actor,
            reason=plan.request.reason,
            key=key,
            findings=assessment.findings,
            change=AppliedChange(
                nodes_before=size_change.nodes,
                nodes_after=size_change.target,
                launched=size_change.launches,
                retired=len(size_change.victims),
                hold_s=assessment.hold_s,
                is_approved=plan_approver is not None,
            ),
        )
        applied = AppliedPlan(
            plan=plan.id,
            decision=decision.ordinal,
            launched=tuple(record.id for record in launched),
            retired=tuple(record.id for record in retired),
            message=render_summary(decision),
            guard_json=assessment.evidence.to_json(),
            hold_until_at=held.hold_until_at if assessment.hold_s else None,
        )
        changed = replace(
            held,
            version=pool.version + 1,
            target=size_change.target,
            changed_at=pool.changed_at if assessment.is_replacement else (*pool.changed_at, now)[-kept_times:],
        )
        changes = Changes(
            pools=(changed,),
            records=(*launched, *retired),
            decisions=(decision,),
            proposals=self._records.approved(proposal, approver),
            reply=self._replies.make_reply(key, request_hash, asdict(applied)),
        )
        return changes, applied

    def _with_hold(self, pool: PoolRecord, plan: Plan, assessment: PlanAssessment) -> PoolRecord:
        """Returns the pool with the hold of a change above the rule's target; a longer hold stays."""
        until = self._fleet.clock.wall() + assessment.hold_s
        if not assessment.hold_s or (pool.hold_until_at or 0.0) >= until:
            return pool
        rule = assessment.evidence.situation.rule_target
        reason = f"the rule's target is {rule} nodes, {plan.request.actor.name} set {assessment.size_change.target}"
        return replace(pool, hold_until_at=until, hold_reason=f"{reason}: {plan.request.reason}")

    def _intent(self, spec: PoolSpec, request: PlanRequest, quote: Quote) -> LaunchRecord:
        now = self._fleet.clock.wall()
        launch = self._plans.launch(spec, usd_per_hour=quote.usd_per_hour)
        instance = Instance(
            id=self._fleet.launch_ids.next(now),
            pool=spec.id,
            state=InstanceState.INTENDED,
            provider=spec.provider,
            type=spec.type,
            region=spec.region,
            is_spot=spec.is_spot,
            usd_per_hour=quote.usd_per_hour,
            actor=request.actor.name,
            reason=request.reason,
            intended_at=now,
            expires_at=launch.tags.expires_at,
        )
        return LaunchRecord(instance=instance, launch=launch)

    def _ordered(self, victim: Instance, order: InstanceEvent, request: PlanRequest) -> LaunchRecord:
        now, state = self._fleet.clock.wall(), next_state(victim.state, order)
        times = {"draining_at": now} if state is InstanceState.DRAINING else {"retiring_at": now}
        cause = termination_cause(victim, order, Cause.REQUESTED)
        instance = replace(victim, state=state, cause=cause, message=f"{request.actor.name}: {request.reason}", **times)  # type: ignore[arg-type]  # all are floats
        return replace(self._fleet.ledger.records[victim.id], instance=instance, tries=0, next_try_at=0.0)


def _values(plan: Plan, assessment: PlanAssessment, approver: Actor | None, applier: Actor) -> Values:
    size_change, retired = assessment.size_change, len(assessment.size_change.victims)
    values: dict[str, Value] = {
        "before": size_change.nodes,
        "after": size_change.target,
        "launched": size_change.launches,
        "terminated" if plan.request.is_kill else "drained": retired,
        "hold_minutes": round(assessment.hold_s / 60),
    }
    if approver is not None:
        values["approver"] = approver.name
    elif applier != plan.request.actor:
        values["applier"] = applier.name
    return {name: value for name, value in values.items() if value or name in ("before", "after")}


def applied(answer: dict[str, Any]) -> AppliedPlan:
    """Returns the stored reply of an applied plan."""
    return _APPLIED.validate_python(answer)
