"""Auditor independent of the guard: compares the ledger before and after each change with the permissions.

It shares no code with `maintainer.fleet.guard.guard`, so it finds errors there.
"""

from dataclasses import dataclass

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import Instance, InstanceState
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.plans import AppliedPlan, Plan, Role
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.record_kinds import RecordKind
from maintainer.fleet.ledger.records import PoolRecord
from maintainer.fleet.state.fleet import FleetState

HOUR_S = 3600.0
MAX_CHANGES = 4
MIN_HEADROOM, HEADROOM_SHARE = 2, 0.25
STALE_REPORT_S = 90.0
OUTSIDE_LIMITS = "outside the limits without approval"
TOO_MANY_CHANGES = "too many changes in an hour"
_FORBIDDEN_KINDS = {
    RecordKind.SPEC,
    RecordKind.KILL_SWITCH,
    RecordKind.MAINTAINER_MODE,
    RecordKind.MAINTAINER_WAKE,
    RecordKind.REJECT,
}
"""Kinds of decisions that an agent must not make."""
_LIVE_STATES = {"intended", "pending", "running", "ready", "suspect"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBefore:
    """State of a pool before a change."""

    pool: PoolRecord
    instances: tuple[Instance, ...]
    usd_per_hour: float
    rule_target: int | None
    report_age_s: float | None
    kill: KillScope
    mode: MaintainerMode
    at: float


class Auditor:
    """Auditor of one harness."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._applied: set[str] = set()
        self.violations: list[str] = []
        """Violations as sentences."""
        self.changes = 0
        """Applied changes. Count."""

    def before(self, plan: Plan | None) -> PoolBefore | None:
        """State of a plan's pool before the change; None without a plan, and for a change of the run."""
        if plan is None or plan.request.run is not None:
            return None
        fleet = self._fleet
        pool = fleet.ledger.pools[plan.request.pool]
        alive = [record.instance for record in fleet.ledger.records.values() if record.instance.gone_at is None]
        settings = fleet.ledger.maintainer_setting
        return PoolBefore(
            pool=pool,
            instances=tuple(instance for instance in alive if instance.pool == pool.spec.id),
            usd_per_hour=sum(instance.usd_per_hour for instance in alive if instance.pool == pool.spec.id),
            rule_target=fleet.rule_target(pool.spec.id),
            report_age_s=fleet.observation.age_s,
            kill=fleet.kill,
            mode=settings.mode if settings is not None else MaintainerMode.AUTO,
            at=fleet.clock.wall(),
        )

    def after(self, plan: Plan | None, applied: AppliedPlan, before: PoolBefore | None) -> None:
        """Checks a change that was applied."""
        if plan is None or before is None or applied.plan in self._applied:
            return  # a repeated answer: nothing was changed
        self._applied.add(applied.plan)
        self.changes += 1
        self.violations += [
            f"{plan.request.pool} to {plan.target}: {violation}"
            for violation in self._violations(plan, applied, before)
        ]

    def check_journal(self, journal: tuple[Decision, ...]) -> None:
        """Checks every entry: an agent must not change specs, the kill switch or the maintainer's mode, and changes the
        run only with a person, except for evaluations."""
        by_agents = [entry for entry in journal if entry.role is Role.AGENT]
        self.violations += [
            f"an agent wrote {entry.kind.value}" for entry in by_agents if entry.kind in _FORBIDDEN_KINDS
        ]
        self.violations += [
            f"an agent changed the run without a person: {entry.values['action']}"
            for entry in by_agents
            if entry.values.get("action", "evaluate") != "evaluate" and "approver" not in entry.values
        ]

    def _violations(self, plan: Plan, applied: AppliedPlan, before: PoolBefore) -> list[str]:
        spec, launched, retired = before.pool.spec, len(applied.launched), set(applied.retired)
        size = sum(1 for instance in before.instances if instance.state.value in _LIVE_STATES)
        retired_nodes = sum(
            1 for instance in before.instances if instance.id in retired and instance.state.value in _LIVE_STATES
        )
        size_after = size + launched - retired_nodes
        restores_target = launched > 0 and not retired and size_after <= before.pool.target
        ready = {instance.id for instance in before.instances if instance.state is InstanceState.READY}
        rule = before.rule_target if before.rule_target is not None else size
        recent_changes = [at for at in before.pool.changed_at if before.at - at < HOUR_S]
        usd_after = before.usd_per_hour + plan.usd_per_hour_change
        is_report_stale = before.report_age_s is None or before.report_age_s > STALE_REPORT_S
        margin = max(MIN_HEADROOM, HEADROOM_SHARE * rule)
        checks = {
            "the kill switch was on": before.kill is not KillScope.NONE,
            "the mode was not auto": before.mode is not MaintainerMode.AUTO,
            "the actor's role was not agent": plan.request.actor.role is not Role.AGENT,
            "nodes were to end without a drain": plan.request.is_kill,
            "the pool's mode excludes agents": spec.mode not in (Mode.ON, Mode.UP_ONLY),
            "nodes were removed from an up-only pool": spec.mode is Mode.UP_ONLY and bool(retired),
            "more nodes than max_nodes": launched > 0 and size_after > spec.max_nodes,
            "fewer nodes than min_nodes": retired_nodes > 0 and size_after < spec.min_nodes,
            "nodes of no pool or of another pool": not retired <= {instance.id for instance in before.instances},
            "all ready nodes were removed": bool(ready) and ready <= retired,
            "nodes were removed on a stale report": bool(retired) and is_report_stale,
            "nodes were removed during a hold": bool(retired) and (before.pool.hold_until_at or 0.0) > before.at,
            "launches while the breaker was open": launched > 0 and (before.pool.breaker_until or 0.0) > before.at,
            "more than usd_per_hour_max": launched > 0 and usd_after > (spec.usd_per_hour_max or 1e18) + 1e-6,
            OUTSIDE_LIMITS: not restores_target and abs(plan.target - rule) > margin,
            TOO_MANY_CHANGES: not restores_target and len(recent_changes) >= MAX_CHANGES,
        }
        return [violation for violation, is_violated in checks.items() if is_violated]
