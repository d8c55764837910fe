"""Writes of the fleet service: decisions of the audit log, and events of launches."""

from dataclasses import replace
from typing import Any

from astraflow.contract.fleet.decisions import AppliedChange, Decision
from astraflow.contract.fleet.instances import Cause, InstanceState, LaunchId
from astraflow.contract.fleet.maintainer import Proposal, ProposalState
from astraflow.contract.fleet.plans import Actor, Plan, Violation
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.values import Values
from astraflow.runtime.logs import get_logger
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES, STARTING_STATES, InstanceEvent
from maintainer.fleet.ledger.records import LaunchRecord
from maintainer.fleet.ledger.transitions import apply_event
from maintainer.fleet.state.fleet import FLEET_ACTOR, FleetState

log = get_logger()

FAILURE_EVENTS = (InstanceEvent.RETIRE, InstanceEvent.PREEMPTING, InstanceEvent.GONE, InstanceEvent.MISSING)
"""Events that count as a launch failure when the instance was never ready, and not preempted."""
BREAKER_FAILURES = 3
"""Consecutive failed launches that open a pool's circuit breaker."""


class FleetRecords:
    """Writes to the ledger of one fleet."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet

    def decision(
        self,
        kind: RecordKind,
        values: Values,
        *,
        pool: str = "",
        actor: Actor,
        reason: str = "",
        cause: str = "",
        severity: Severity | None = None,
        key: str = "",
        findings: tuple[Violation, ...] = (),
        change: AppliedChange | None = None,
    ) -> Decision:
        """Returns an audit log entry with the next number. Call it inside `Ledger.change`."""
        return Decision(
            ordinal=self._fleet.ledger.next_decision,
            at=self._fleet.clock.wall(),
            kind=kind,
            subject=pool,
            actor=actor.name,
            role=actor.role,
            reason=reason,
            cause=cause,
            severity=severity or kind.severity,
            values=values,
            key=key,
            findings=findings,
            change=change,
        )

    async def add_decision(self, kind: RecordKind, values: Values, **fields: Any) -> Decision:
        """Records a decision; `fields` as in `decision`."""

        def decide(_: Ledger) -> tuple[Changes, Decision]:
            decision = self.decision(kind, values, **fields)
            return Changes(decisions=(decision,)), decision

        return await self._fleet.ledger.change(decide)

    def refusal(self, plan: Plan, objection: str, applier: Actor, findings: tuple[Violation, ...], key: str) -> Changes:
        """Returns the entry of a refused plan. Call it inside `Ledger.change`."""
        decision = self.decision(
            RecordKind.REFUSE,
            {"text": objection},
            pool=plan.request.pool,
            actor=applier,
            reason=plan.request.reason,
            key=key,
            findings=findings,
        )
        return Changes(decisions=(decision,))

    def approved(self, proposal: Proposal | None, approver: Actor | None) -> tuple[Proposal, ...]:
        """Returns the proposal as approved by a person; empty without both."""
        if proposal is None or approver is None:
            return ()
        at = self._fleet.clock.wall()
        return (replace(proposal, state=ProposalState.APPROVED, decided_at=at, decided_by=approver.name),)

    async def record_event(
        self,
        launch: LaunchId,
        event: InstanceEvent,
        *,
        cause: Cause | None = None,
        message: str | None = None,
        **changes: Any,
    ) -> LaunchRecord | None:
        """Applies an event to a launch; increments the pool's version if its size changed.

        cause: known cause of a termination. message, handle: fields of the instance. changes: other fields of the
        record. Returns the new record; None for an unknown launch.
        """

        def decide(ledger: Ledger) -> tuple[Changes, LaunchRecord | None]:
            stored_record = ledger.records.get(launch)
            if stored_record is None:
                return Changes(), None
            updated = apply_event(
                stored_record, event, now=self._fleet.clock.wall(), cause=cause, message=message, changes=changes
            )
            if updated == stored_record:
                return Changes(), stored_record
            return self._changes(stored_record, updated, event), updated

        before = self._fleet.ledger.records.get(launch)
        updated = await self._fleet.ledger.change(decide)
        if updated is not None and before is not None and updated.instance.state is not before.instance.state:
            state, message = updated.instance.state.value, updated.instance.message
            log.info(
                "instance_changed",
                launch=launch,
                pool=updated.instance.pool,
                state=state,
                instance_event=event.value,
                message=message,
            )
        return updated

    def _was_unobserved(self, record: LaunchRecord) -> bool:
        """Returns whether dataflow, which nodes need in order to join, did not answer at some time since the launch."""
        launched_at = record.instance.launched_at
        return (
            launched_at is not None
            and self._fleet.stored_times.age_s(launched_at) > self._fleet.observation.fresh_for_s
        )

    def _changes(self, known: LaunchRecord, updated: LaunchRecord, event: InstanceEvent) -> Changes:
        """Returns the changes of an event for the instance and its pool: size, successful or failed launch."""
        pool = self._fleet.ledger.pools[updated.instance.pool]
        is_counted, was_counted = (record.instance.state in COUNTED_STATES for record in (updated, known))
        changed = replace(pool, version=pool.version + (is_counted != was_counted))
        if updated.instance.state is InstanceState.READY and known.instance.ready_at is None:
            changed = replace(changed, failures=0, breaker_until=None)
        is_failure = event in FAILURE_EVENTS and updated.instance.cause is not Cause.PREEMPTED
        has_failed = is_failure and known.instance.state in STARTING_STATES and not is_counted
        if not has_failed or self._was_unobserved(known):
            return Changes(records=(updated,), pools=(changed,) if changed != pool else ())
        failures = pool.failures + 1
        until = (
            self._fleet.clock.wall() + self._fleet.config.times.breaker_s
            if failures >= BREAKER_FAILURES
            else pool.breaker_until
        )
        decision = self.decision(
            RecordKind.LAUNCH_FAILED,
            {"launch": updated.id, "failures": failures, "error": updated.instance.message or event.value},
            pool=pool.spec.id,
            actor=FLEET_ACTOR,
        )
        log.warning("launch_failed", launch=updated.id, pool=pool.spec.id, problem=updated.instance.message)
        return Changes(
            records=(updated,), pools=(replace(changed, failures=failures, breaker_until=until),), decisions=(decision,)
        )
