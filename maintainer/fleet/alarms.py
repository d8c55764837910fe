"""Alarms of the fleet: the audit log gets an entry when a condition begins and when it ends.

Readers of the audit log forward alarms, as the maintainer's webhook does. Active alarms are read from the audit log at
the start, so that a restart does not repeat them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sqlmodel import Session, col, select

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.decisions import DecisionKind
from astraflow.runtime.database import Database
from astraflow.runtime.logs import get_logger
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.ledger.records import spending_rate, spent_today
from maintainer.fleet.ledger.tables import DecisionRow
from maintainer.fleet.state.fleet import BREAKER_FAILURES, FLEET_ACTOR, Fleet

log = get_logger()

MAX_ALARM_ENTRIES = 500
"""Number of latest entries of both kinds that are read; active alarms are among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmCondition:
    """A condition that people should know of."""

    key: str
    """Subject in a few words; constant while the condition lasts."""
    text: str
    severity: str = "warning"
    after_s: float = 0.0
    """Minimum duration before the alarm is raised. Seconds."""


class Alarms:
    """Raises and ends alarms. One instance per service."""

    def __init__(
        self, fleet: Fleet, manager: FleetManager, database: Database, problems: Callable[[], Mapping[str, str]]
    ) -> None:
        """problems: problems that the reconciler has found, by subject."""
        self._fleet = fleet
        self._manager = manager
        self._database = database
        self._problems = problems
        self._since: dict[str, float] = {}
        """Clock time at which each current condition was first seen."""
        self._active_keys: set[str] | None = None
        """Active alarms in the audit log; None before it was read."""

    async def check(self) -> None:
        """Records conditions that have begun or ended; a failed write is repeated at the next check."""
        try:
            if self._active_keys is None:
                self._active_keys = await self._database.read(_active_alarms)
            await self._update(self._active_keys)
        except AstraFlowError as problem:
            log.warning("alarm_not_recorded", problem=str(problem))

    async def _update(self, active_keys: set[str]) -> None:
        now, current = self._fleet.clock.now(), {condition.key: condition for condition in self.conditions()}
        self._since = {key: self._since.get(key, now) for key in current}
        for key, condition in current.items():
            if key not in active_keys and now - self._since[key] >= condition.after_s:
                await self._record(DecisionKind.ALARM, f"{condition.severity}: {condition.text}", key)
                active_keys.add(key)
        for key in sorted(active_keys - set(current)):
            await self._record(DecisionKind.ALARM_OVER, f"info: {key}: the alarm has ended", key)
            active_keys.remove(key)

    def conditions(self) -> Iterator[AlarmCondition]:
        """Returns the current conditions."""
        yield from self._launch_conditions()
        yield from self._budget_conditions()
        yield from self._orphan_conditions()
        patience_s = 2 * self._fleet.config.times.sweep_s
        for key, text in self._problems().items():
            yield AlarmCondition(key=key, text=text, after_s=patience_s)

    def _launch_conditions(self) -> Iterator[AlarmCondition]:
        for name, pool in sorted(self._fleet.ledger.pools.items()):
            if pool.failures >= BREAKER_FAILURES:
                text = (
                    f"{pool.failures} launches of pool {name} failed in a row; the next attempts are every "
                    f"{self._fleet.config.times.breaker_s:.0f} s until one succeeds"
                )
                yield AlarmCondition(key=f"launches of pool {name}", text=text)

    def _budget_conditions(self) -> Iterator[AlarmCondition]:
        """Returns daily budgets that the present instances will exhaust within the hour, so no node can be added."""
        now, all_records = self._fleet.clock.wall(), tuple(self._fleet.ledger.records.values())
        ledger = self._fleet.ledger
        budgets = [("all pools", all_records, ledger.billed(), self._fleet.limits.usd_per_day_max)]
        for name, pool in sorted(self._fleet.ledger.pools.items()):
            pool_records = tuple(record for record in all_records if record.instance.pool == name)
            budgets.append((f"pool {name}", pool_records, ledger.billed(name), pool.spec.usd_per_day_max))
        for owner, records, billed, budget in budgets:
            if budget is None:
                continue
            spent, rate = spent_today(records, now=now), spending_rate(billed)
            if spent > 0 and spent + rate >= budget:
                spending_now = (
                    f"{spent:.2f} of the daily budget of {budget:.2f} dollars are spent, at {rate:.2f} an hour"
                )
                yield AlarmCondition(
                    key=f"dollars of {owner}", text=f"{owner}: {spending_now}; no further nodes are launched"
                )

    def _orphan_conditions(self) -> Iterator[AlarmCondition]:
        by_provider: dict[str, list[str]] = {}
        for provider, handle in sorted(self._fleet.ledger.orphans):
            by_provider.setdefault(provider, []).append(handle)
        for provider, handles in by_provider.items():
            text = (
                f"{len(handles)} orphaned instances at provider {provider} have the cluster's tag and no launch "
                f"({handles[0]} first); those of this fleet, without a working node, are terminated after "
                f"{self._fleet.config.times.quarantine_s:.0f} s"
            )
            yield AlarmCondition(key=f"orphans at {provider}", text=text)

    async def _record(self, kind: DecisionKind, message: str, key: str) -> None:
        once = f"fleet:{kind.value}:{self._fleet.ledger.next_decision}"
        await self._manager.record_decision(kind, message[:2000], FLEET_ACTOR, once, key[:2000])


def _active_alarms(session: Session) -> set[str]:
    """Returns the alarms that have begun and not ended in the audit log."""
    query = (
        select(DecisionRow.reason, DecisionRow.kind)
        .where(col(DecisionRow.kind).in_((DecisionKind.ALARM.value, DecisionKind.ALARM_OVER.value)))
        .order_by(col(DecisionRow.ordinal).desc())
        .limit(MAX_ALARM_ENTRIES)
    )
    latest: dict[str, str] = {}
    for key, kind in session.exec(query):
        latest.setdefault(key, kind)
    return {key for key, kind in latest.items() if kind == DecisionKind.ALARM.value}
