"""What applying a plan writes down: intents, who leaves, the hold that goes with it, the journal, and the answer."""

from dataclasses import asdict, replace
from typing import Any

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import (
    Actor,
    Applied,
    Instance,
    InstanceState,
    LaunchId,
    Plan,
    PlanId,
    PlanRequest,
    PoolSpec,
    Verdict,
)
from astraflow.contract.maintenance import Proposal, ProposalState
from maintainer.fleet.departures import cause_after
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.guard import verdict
from maintainer.fleet.ledger import Changes
from maintainer.fleet.lifecycle import Sight, after
from maintainer.fleet.plans import Judged, Plans
from maintainer.fleet.providers.base import Quote
from maintainer.fleet.records import PoolRecord, Record
from maintainer.fleet.replies import Replies

KEPT_CHANGES = 16


class Applying:
    """One for the service. Made inside `Ledger.change`: nothing here waits, and nothing happens yet."""

    def __init__(self, fleet: Fleet, plans: Plans, replies: Replies) -> None:
        self._fleet = fleet
        self._plans = plans
        self._replies = replies

    def changes(
        self,
        plan: Plan,
        pool: PoolRecord,
        judged: Judged,
        quote: Quote,
        *,
        key: str,
        asked: str,
        approver: Actor | None,
        applier: Actor,
    ) -> tuple[Changes, Applied]:
        """What to write down, and what the caller is answered. judged: of the plan, as the pool is at this moment."""
        shaped, now = judged.shape, self._fleet.clock.wall()
        launched = [self._intent(pool.spec, plan.request, quote) for _ in range(shaped.launches)]
        order = Sight.RETIRE if plan.request.is_kill else Sight.DRAIN
        leaving = [self._ordered(victim, order, plan.request) for victim in shaped.victims]
        proposal = self._fleet.ledger.waiting.get(plan.id)
        needs_approval = proposal is not None or verdict(judged.findings) is Verdict.NEEDS_APPROVAL
        held = self._held(pool, plan, judged)
        message = _sentence(plan, judged, approver if needs_approval else None, applier)
        decision = self._fleet.decision(
            "apply",
            pool=pool.spec.id,
            actor=plan.request.actor,
            reason=plan.request.reason,
            message=message,
            key=key,
            findings=judged.findings,
        )
        applied = Applied(
            plan=plan.id,
            decision=decision.ordinal,
            launched=tuple(record.id for record in launched),
            retired=tuple(record.id for record in leaving),
            message=message,
            guard_json=judged.evidence.to_json(),
            hold_until=held.hold_until if judged.hold_s else None,
        )
        changed = replace(
            held,
            version=pool.version + 1,
            target=shaped.target,
            changed_at=pool.changed_at if judged.is_replacement else (*pool.changed_at, now)[-KEPT_CHANGES:],
        )
        changes = Changes(
            pools=(changed,),
            records=(*launched, *leaving),
            decisions=(decision,),
            proposals=self._approved(proposal, approver),
            reply=self._replies.kept(key, asked, asdict(applied)),
        )
        return changes, applied

    def _held(self, pool: PoolRecord, plan: Plan, judged: Judged) -> PoolRecord:
        """The pool with the hold that a change beyond the rule's target sets; a longer one stays as it is."""
        until = self._fleet.clock.wall() + judged.hold_s
        if not judged.hold_s or (pool.hold_until or 0.0) >= until:
            return pool
        rule = judged.evidence.situation.rule_target
        reason = f"the rule wants {rule} nodes, {plan.request.actor.name} wants {judged.shape.target}"
        return replace(pool, hold_until=until, hold_reason=f"{reason}: {plan.request.reason}")

    def _approved(self, proposal: Proposal | None, approver: Actor | None) -> tuple[Proposal, ...]:
        if proposal is None or approver is None:
            return ()
        decided = {"decided_at": self._fleet.clock.wall(), "decided_by": approver.name}
        return (replace(proposal, state=ProposalState.APPROVED, **decided),)  # type: ignore[arg-type]  # as they are

    def _intent(self, spec: PoolSpec, request: PlanRequest, quote: Quote) -> Record:
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
        return Record(instance=instance, launch=launch)

    def _ordered(self, victim: Instance, order: Sight, request: PlanRequest) -> Record:
        now, state = self._fleet.clock.wall(), after(victim.state, order)
        times = {"draining_at": now} if state is InstanceState.DRAINING else {"retiring_at": now}
        cause = cause_after(victim, order, Cause.ORDERED)
        instance = replace(victim, state=state, cause=cause, message=f"{request.actor.name}: {request.reason}", **times)  # type: ignore[arg-type]  # all are floats
        return replace(self._fleet.ledger.records[victim.id], instance=instance, tries=0, next_try_at=0.0)


def _sentence(plan: Plan, judged: Judged, approver: Actor | None, applier: Actor) -> str:
    shaped = judged.shape
    parts = [f"from {shaped.nodes} to {shaped.target} {'node' if shaped.target == 1 else 'nodes'}"]
    parts += [f"{shaped.launches} launched"] if shaped.launches else []
    parts += [f"{len(shaped.victims)} {'killed' if plan.request.is_kill else 'drained'}"] if shaped.victims else []
    parts += [f"held for {judged.hold_s / 60:.0f} minutes"] if judged.hold_s else []
    if approver is not None:
        parts.append(f"approved by {approver.name}")
    elif applier != plan.request.actor:
        parts.append(f"applied by {applier.name}")
    return ", ".join(parts)


def applied(said: dict[str, Any]) -> Applied:
    """The answer that was kept under a key."""
    return Applied(
        plan=PlanId(said["plan"]),
        decision=said["decision"],
        launched=tuple(LaunchId(launch) for launch in said["launched"]),
        retired=tuple(LaunchId(launch) for launch in said["retired"]),
        message=said["message"],
        guard_json=said.get("guard_json", ""),
        hold_until=said.get("hold_until"),
    )
