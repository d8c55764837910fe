"""Records to rows and back: the one place where the ledger's edge is crossed."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from astraflow.contract.advice import Mode
from astraflow.contract.causes import Cause
from astraflow.contract.fleet import (
    Actor,
    Decision,
    Finding,
    Instance,
    InstanceState,
    KillScope,
    LaunchId,
    Plan,
    PlanId,
    PlanRequest,
    PoolSpec,
    Role,
    Verdict,
)
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import MaintainerMode, Proposal, ProposalState, TranscriptEntry
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Tags
from maintainer.fleet.records import MaintainerOrder, Orphan, PoolRecord, Record, Reply, Switch
from maintainer.fleet.tables import (
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

_INSTANCE = (
    *("provider", "handle", "type", "region", "is_spot", "usd_per_hour", "actor", "reason", "intended_at"),
    *("expires_at", "launched_at", "ready_at", "draining_at", "retiring_at", "gone_at"),
    "message",
)
_RECORD = ("tries", "next_try_at", "missed", "is_told", "suspect_at")
_POOL = ("version", "target", "hold_until", "hold_reason", "failures", "breaker_until")
_PROPOSAL = ("proposed_at", "decided_at", "decided_by", "decision_reason")
_ENTRY = ("ordinal", "at", "wake", "kind", "previous", "hash")


def pool_row(pool: PoolRecord) -> PoolRow:
    """Pool -> row."""
    spec = asdict(pool.spec) | {"mode": pool.spec.mode.value}
    changed_at = json.dumps(pool.changed_at)
    return PoolRow(id=pool.spec.id, spec_json=json.dumps(spec), changed_at_json=changed_at, **_taken(pool, _POOL))


def pool(row: PoolRow) -> PoolRecord:
    """Row -> pool."""
    said = json.loads(row.spec_json)
    spec = PoolSpec(**said | {"id": PoolId(said["id"]), "mode": Mode(said["mode"])})
    return PoolRecord(spec=spec, changed_at=tuple(json.loads(row.changed_at_json)), **_taken(row, _POOL))


def record_row(record: Record) -> InstanceRow:
    """Launch -> row."""
    instance = record.instance
    return InstanceRow(
        id=instance.id,
        pool=instance.pool,
        state=instance.state.value,
        cause=instance.cause.value if instance.cause is not None else None,
        launch_json=launch_json(record.launch),
        **_taken(instance, _INSTANCE),
        **_taken(record, _RECORD),
    )


def record(row: InstanceRow) -> Record:
    """Row -> launch."""
    instance = Instance(
        id=LaunchId(row.id),
        pool=PoolId(row.pool),
        state=InstanceState(row.state),
        cause=Cause(row.cause) if row.cause is not None else None,
        **_taken(row, _INSTANCE),
    )
    return Record(instance=instance, launch=_launch(row.launch_json), **_taken(row, _RECORD))


def launch_json(launch: LaunchSpec) -> str:
    """What is asked of a provider, without the token."""
    said = asdict(launch)
    del said["token"]
    return json.dumps(said)


def decision_row(decision: Decision) -> DecisionRow:
    """Entry of the journal -> row."""
    return DecisionRow(
        actor=decision.actor.name,
        role=decision.actor.role.value,
        findings_json=json.dumps([asdict(one) for one in decision.findings], default=lambda choice: choice.value),
        **_taken(decision, ("ordinal", "at", "kind", "pool", "reason", "message", "key")),
    )


def decision(row: DecisionRow) -> Decision:
    """Row -> entry of the journal."""
    return Decision(
        actor=Actor(name=row.actor, role=Role(row.role)),
        findings=_findings(json.loads(row.findings_json)),
        **_taken(row, ("ordinal", "at", "kind", "pool", "reason", "message", "key")),
    )


def orphan_row(orphan: Orphan) -> OrphanRow:
    """Orphan -> row."""
    return OrphanRow(**asdict(orphan))


def orphan(row: OrphanRow) -> Orphan:
    """Row -> orphan."""
    return Orphan(provider=row.provider, handle=row.handle, launch_id=row.launch_id, seen_at=row.seen_at)


def switch_row(switch: Switch) -> SwitchRow:
    """Kill switch -> row."""
    return SwitchRow(id=1, scope=switch.scope.value, reason=switch.reason)


def switch(row: SwitchRow) -> Switch:
    """Row -> kill switch."""
    return Switch(scope=KillScope(row.scope), reason=row.reason)


def reply_row(reply: Reply) -> ReplyRow:
    """Reply -> row."""
    return ReplyRow(**asdict(reply))


def reply(row: ReplyRow) -> Reply:
    """Row -> reply."""
    return Reply(key=row.key, asked=row.asked, reply_json=row.reply_json, at=row.at)


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
        **_taken(proposal, _PROPOSAL),
    )


def proposal(row: ProposalRow) -> Proposal:
    """Row -> proposal."""
    return Proposal(
        plan=_plan(row.plan_json),
        state=ProposalState(row.state),
        proposed_by=Actor(name=row.actor, role=Role(row.role)),
        **_taken(row, _PROPOSAL),
    )


def order_row(order: MaintainerOrder) -> MaintainerRow:
    """What people told the maintainer -> row."""
    return MaintainerRow(id=1, mode=order.mode.value, **_taken(order, ("by", "reason", "at")))


def order(row: MaintainerRow) -> MaintainerOrder:
    """Row -> what people told the maintainer."""
    return MaintainerOrder(mode=MaintainerMode(row.mode), **_taken(row, ("by", "reason", "at")))


def entry_row(entry: TranscriptEntry, chain: str) -> EntryRow:
    """Entry of a transcript -> row."""
    return EntryRow(chain=chain, body_json=json.dumps(dict(entry.body)), **_taken(entry, _ENTRY))


def entry(row: EntryRow) -> TranscriptEntry:
    """Row -> entry of a transcript."""
    return TranscriptEntry(body=json.loads(row.body_json), **_taken(row, _ENTRY))


def _plan(text: str) -> Plan:
    said = json.loads(text)
    asked = said["request"]
    request = PlanRequest(
        **asked
        | {
            "pool": PoolId(asked["pool"]),
            "actor": Actor(name=asked["actor"]["name"], role=Role(asked["actor"]["role"])),
            "retire": tuple(LaunchId(launch) for launch in asked["retire"]),
        }
    )
    read = {
        "id": PlanId(said["id"]),
        "request": request,
        "victims": tuple(LaunchId(victim) for victim in said["victims"]),
        "verdict": Verdict(said["verdict"]),
        "findings": _findings(said["findings"]),
    }
    return Plan(**said | read)


def _findings(said: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    return tuple(Finding(**dict(one) | {"verdict": Verdict(one["verdict"])}) for one in said)


def _launch(text: str) -> LaunchSpec:
    said = json.loads(text)
    return LaunchSpec(**said | {"tags": Tags(**said["tags"]), "node": NodePlan(**said["node"])})


def _taken(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
