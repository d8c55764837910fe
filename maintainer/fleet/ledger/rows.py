"""Converts records of the ledger to database rows and back."""

import json
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from astraflow.contract.fleet.decisions import AppliedChange, Decision
from astraflow.contract.fleet.instances import Cause, Instance, InstanceState, LaunchId
from astraflow.contract.fleet.maintainer import MaintainerMode, Proposal, ProposalState, TranscriptEntry
from astraflow.contract.fleet.plans import Actor, Plan, Role, Violation
from astraflow.contract.fleet.pools import KillScope, PoolSpec
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.runtime.database import storable_text
from maintainer.fleet.ledger.records import KillSwitch, LaunchRecord, MaintainerSetting, Orphan, PoolRecord, Reply
from maintainer.fleet.ledger.tables import (
    DecisionRow,
    EntryRow,
    InstanceRow,
    MaintainerRow,
    OrphanRow,
    PoolRow,
    ProposalRow,
    ReplyRow,
    SwitchRow,
)
from maintainer.fleet.providers.base import LaunchSpec

_INSTANCE = (
    *("provider", "handle", "type", "region", "is_spot", "usd_per_hour", "actor", "reason", "intended_at"),
    *("expires_at", "launched_at", "ready_at", "draining_at", "retiring_at", "gone_at"),
    "message",
)
_RECORD = ("tries", "next_try_at", "missed", "is_drain_requested", "suspect_at")
_POOL = ("version", "target", "hold_until_at", "hold_reason", "failures", "breaker_until")
_PROPOSAL = ("proposed_at", "decided_at", "decided_by", "decision_reason")
_DECISION = ("ordinal", "at", "actor", "reason", "cause", "key")
_ENTRY = ("ordinal", "at", "wake", "kind", "previous", "hash")

_PLAN_JSON, _SPEC_JSON, _LAUNCH_JSON = TypeAdapter(Plan), TypeAdapter(PoolSpec), TypeAdapter(LaunchSpec)
_FINDINGS_JSON, _CHANGE_JSON = TypeAdapter(tuple[Violation, ...]), TypeAdapter(AppliedChange)


def pool_row(pool: PoolRecord) -> PoolRow:
    """Pool -> row."""
    spec = asdict(pool.spec) | {"mode": pool.spec.mode.value}
    changed_at = json.dumps(pool.changed_at)
    return PoolRow(
        id=pool.spec.id, spec_json=json.dumps(spec), changed_at_json=changed_at, **_copied_fields(pool, _POOL)
    )


def pool(row: PoolRow) -> PoolRecord:
    """Row -> pool."""
    spec, changed_at = _SPEC_JSON.validate_json(row.spec_json), tuple(json.loads(row.changed_at_json))
    return PoolRecord(spec=spec, changed_at=changed_at, **_copied_fields(row, _POOL))


def record_row(record: LaunchRecord) -> InstanceRow:
    """Launch -> row."""
    instance = record.instance
    return InstanceRow(
        id=instance.id,
        pool=instance.pool,
        state=instance.state.value,
        cause=instance.cause.value if instance.cause is not None else None,
        launch_json=launch_json(record.launch),
        **_copied_fields(instance, _INSTANCE),
        **_copied_fields(record, _RECORD),
    )


def record(row: InstanceRow) -> LaunchRecord:
    """Row -> launch."""
    instance = Instance(
        id=LaunchId(row.id),
        pool=PoolId(row.pool),
        state=InstanceState(row.state),
        cause=Cause(row.cause) if row.cause is not None else None,
        **_copied_fields(row, _INSTANCE),
    )
    launch = _LAUNCH_JSON.validate_json(row.launch_json)
    return LaunchRecord(instance=instance, launch=launch, **_copied_fields(row, _RECORD))


def launch_json(launch: LaunchSpec) -> str:
    """Returns a launch request as JSON, without the token."""
    fields = asdict(launch)
    del fields["token"]
    return json.dumps(fields)


def decision_row(decision: Decision) -> DecisionRow:
    """Audit log entry -> row."""
    return DecisionRow(
        kind=decision.kind.value,
        pool=decision.subject,
        role=decision.role.value,
        severity=decision.severity.value,
        values_json=storable_text(json.dumps(dict(decision.values))),
        findings_json=json.dumps(
            [asdict(finding) for finding in decision.findings], default=lambda choice: choice.value
        ),
        change_json=json.dumps(asdict(decision.change)) if decision.change is not None else None,
        **_copied_fields(decision, _DECISION),
    )


def decision(row: DecisionRow) -> Decision:
    """Row -> audit log entry."""
    return Decision(
        kind=RecordKind(row.kind),
        subject=row.pool,
        role=Role(row.role),
        severity=Severity(row.severity),
        values=json.loads(row.values_json),
        findings=_FINDINGS_JSON.validate_json(row.findings_json),
        change=_CHANGE_JSON.validate_json(row.change_json) if row.change_json is not None else None,
        **_copied_fields(row, _DECISION),
    )


def orphan_row(orphan: Orphan) -> OrphanRow:
    """Orphan -> row."""
    return OrphanRow(**asdict(orphan))


def orphan(row: OrphanRow) -> Orphan:
    """Row -> orphan."""
    return Orphan(**row.model_dump())


def switch_row(switch: KillSwitch) -> SwitchRow:
    """Kill switch -> row."""
    return SwitchRow(id=1, scope=switch.scope.value, reason=switch.reason)


def switch(row: SwitchRow) -> KillSwitch:
    """Row -> kill switch."""
    return KillSwitch(scope=KillScope(row.scope), reason=row.reason)


def reply_row(reply: Reply) -> ReplyRow:
    """Reply -> row."""
    return ReplyRow(**asdict(reply))


def reply(row: ReplyRow) -> Reply:
    """Row -> reply."""
    return Reply(**row.model_dump())


def proposal_row(proposal: Proposal) -> ProposalRow:
    """Proposal -> row."""
    plan = proposal.plan
    return ProposalRow(
        plan=plan.id,
        pool=plan.request.pool,
        state=proposal.state.value,
        plan_json=json.dumps(asdict(plan), default=lambda choice: choice.value),
        actor=proposal.proposed_by.name,
        role=proposal.proposed_by.role.value,
        **_copied_fields(proposal, _PROPOSAL),
    )


def proposal(row: ProposalRow) -> Proposal:
    """Row -> proposal."""
    return Proposal(
        plan=_PLAN_JSON.validate_json(row.plan_json),
        state=ProposalState(row.state),
        proposed_by=Actor(name=row.actor, role=Role(row.role)),
        **_copied_fields(row, _PROPOSAL),
    )


def setting_row(setting: MaintainerSetting) -> MaintainerRow:
    """Maintainer's setting -> row."""
    return MaintainerRow(id=1, mode=setting.mode.value, **_copied_fields(setting, ("by", "reason", "at")))


def setting(row: MaintainerRow) -> MaintainerSetting:
    """Row -> maintainer's setting."""
    return MaintainerSetting(mode=MaintainerMode(row.mode), **_copied_fields(row, ("by", "reason", "at")))


def entry_row(entry: TranscriptEntry, chain: str) -> EntryRow:
    """Transcript entry -> row."""
    return EntryRow(chain=chain, body_json=json.dumps(dict(entry.body)), **_copied_fields(entry, _ENTRY))


def entry(row: EntryRow) -> TranscriptEntry:
    """Row -> transcript entry."""
    return TranscriptEntry(body=json.loads(row.body_json), **_copied_fields(row, _ENTRY))


def _copied_fields(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns fields by name; a text may be the output of a provider's program."""
    fields = {name: getattr(source, name) for name in names}
    return {name: storable_text(value) if type(value) is str else value for name, value in fields.items()}
