"""An auditor that trusts no guard: it knows the promises in plain words, and compares the ledger before and after.

It shares no code with `maintainer.fleet.guard`: an error there shows here.
"""

from dataclasses import dataclass

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import Applied, Instance, InstanceState, KillScope, Plan, Role
from astraflow.contract.maintenance import MaintainerMode
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.records import PoolRecord

HOUR_S = 3600.0
MOST_CHANGES = 4
LEAST_ROOM, SHARE_OF_ROOM = 2, 0.25
OLD_S = 90.0
_THERE = {"intended", "pending", "running", "ready", "suspect"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A pool as it was."""

    pool: PoolRecord
    instances: tuple[Instance, ...]
    usd_per_hour: float
    rule_target: int | None
    report_age_s: float | None
    kill: KillScope
    mode: MaintainerMode
    at: float


class Auditor:
    """Of one stage."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._applied: set[str] = set()
        self.violations: list[str] = []
        """Sentences."""
        self.changes = 0
        """That were applied."""

    def before(self, plan: Plan | None) -> Before | None:
        """What the pool of a plan is like."""
        if plan is None:
            return None
        fleet = self._fleet
        pool = fleet.ledger.pools[plan.request.pool]
        alive = [record.instance for record in fleet.ledger.records.values() if record.instance.gone_at is None]
        order = fleet.ledger.order
        return Before(
            pool=pool,
            instances=tuple(one for one in alive if one.pool == pool.spec.id),
            usd_per_hour=sum(one.usd_per_hour for one in alive if one.pool == pool.spec.id),
            rule_target=fleet.rule_target(pool.spec.id),
            report_age_s=fleet.observation.age_s,
            kill=fleet.kill,
            mode=order.mode if order is not None else MaintainerMode.AUTO,
            at=fleet.clock.wall(),
        )

    def after(self, plan: Plan | None, applied: Applied, before: Before | None) -> None:
        """A change was made: was it one that may be?"""
        if plan is None or before is None or applied.plan in self._applied:
            return  # the first answer again: nothing was done
        self._applied.add(applied.plan)
        self.changes += 1
        self.violations += [
            f"{plan.request.pool} to {plan.target}: {what}" for what in self._wrong(plan, applied, before)
        ]

    def check_journal(self, journal: tuple[tuple[str, Role], ...]) -> None:
        """Kind and role of every entry: no agent changes specs, the switch, or how far it may go itself."""
        forbidden = {"spec", "kill_switch", "maintainer_mode", "reject"}
        self.violations += [
            f"an agent wrote {kind}" for kind, role in journal if role is Role.AGENT and kind in forbidden
        ]

    def _wrong(self, plan: Plan, applied: Applied, before: Before) -> list[str]:
        spec, launched, retired = before.pool.spec, len(applied.launched), set(applied.retired)
        size = sum(1 for one in before.instances if one.state.value in _THERE)
        leaving = sum(1 for one in before.instances if one.id in retired and one.state.value in _THERE)
        size_after = size + launched - leaving
        brings_back = launched > 0 and not retired and size_after <= before.pool.target
        ready = {one.id for one in before.instances if one.state is InstanceState.READY}
        rule = before.rule_target if before.rule_target is not None else size
        lately = [at for at in before.pool.changed_at if before.at - at < HOUR_S]
        usd_after = before.usd_per_hour + plan.usd_per_hour_change
        is_blind = before.report_age_s is None or before.report_age_s > OLD_S
        room = max(LEAST_ROOM, SHARE_OF_ROOM * rule)
        claims = {
            "the kill switch was on": before.kill is not KillScope.NONE,
            "people had not let it act by itself": before.mode is not MaintainerMode.AUTO,
            "an agent asked in another role": plan.request.actor.role is not Role.AGENT,
            "nodes were to end without a drain": plan.request.is_kill,
            "the pool is not open to agents": spec.mode not in (Mode.ON, Mode.UP_ONLY),
            "nodes went from a pool that may only grow": spec.mode is Mode.UP_ONLY and bool(retired),
            "more nodes than allowed": launched > 0 and size_after > spec.max_nodes,
            "fewer nodes than allowed": leaving > 0 and size_after < spec.min_nodes,
            "nodes of nobody or of another pool": not retired <= {one.id for one in before.instances},
            "the last node that works": bool(ready) and ready <= retired,
            "nodes went while nothing was heard": bool(retired) and is_blind,
            "nodes went from a pool that is held": bool(retired) and (before.pool.hold_until or 0.0) > before.at,
            "launches where they fail": launched > 0 and (before.pool.breaker_until or 0.0) > before.at,
            "more money than allowed": launched > 0 and usd_after > (spec.usd_per_hour_max or 1e18) + 1e-6,
            "far from the rule, and nobody approved": not brings_back and abs(plan.target - rule) > room,
            "too many changes in an hour": not brings_back and len(lately) >= MOST_CHANGES,
        }
        return [what for what, is_so in claims.items() if is_so]
