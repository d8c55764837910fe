"""Records to rows and back: the one place where the ledger's edge is crossed."""

import json
from dataclasses import asdict
from typing import Any

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import Actor, Decision, Instance, InstanceState, KillScope, LaunchId, PoolSpec, Role
from astraflow.contract.ids import PoolId
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Tags
from maintainer.fleet.records import Orphan, PoolRecord, Record, Reply, Switch
from maintainer.fleet.tables import DecisionRow, InstanceRow, OrphanRow, PoolRow, ReplyRow, SwitchRow

_INSTANCE = (
    *("provider", "handle", "type", "region", "is_spot", "usd_per_hour", "actor", "reason", "intended_at"),
    *("expires_at", "launched_at", "ready_at", "draining_at", "retiring_at", "gone_at", "message"),
)
_RECORD = ("tries", "next_try_at", "missed", "is_told")
_POOL = ("version", "target", "hold_until", "hold_reason", "failures", "breaker_until")


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
        launch_json=launch_json(record.launch),
        **_taken(instance, _INSTANCE),
        **_taken(record, _RECORD),
    )


def record(row: InstanceRow) -> Record:
    """Row -> launch."""
    instance = Instance(
        id=LaunchId(row.id), pool=PoolId(row.pool), state=InstanceState(row.state), **_taken(row, _INSTANCE)
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
        **_taken(decision, ("ordinal", "at", "kind", "pool", "reason", "message", "key")),
    )


def decision(row: DecisionRow) -> Decision:
    """Row -> entry of the journal."""
    return Decision(
        actor=Actor(name=row.actor, role=Role(row.role)),
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


def _launch(text: str) -> LaunchSpec:
    said = json.loads(text)
    return LaunchSpec(**said | {"tags": Tags(**said["tags"]), "node": NodePlan(**said["node"])})


def _taken(source: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
