"""Alarms of the fleet: the audit log gets an entry when a condition begins and when it ends.

Readers of the audit log forward alarms, as the maintainer's webhook does. Active alarms are read from the audit log at
the start, so that a restart does not repeat them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sqlmodel import Session, col, select

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, problem_record
from astraflow.runtime.database import Database
from astraflow.runtime.logs import get_logger
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.ledger.records import spending_rate, spent_today
from maintainer.fleet.ledger.tables import DecisionRow
from maintainer.fleet.state.fleet import FLEET_ACTOR, FleetState
from maintainer.fleet.state.fleet_records import BREAKER_FAILURES

log = get_logger()

MAX_ALARM_ENTRIES = 500
"""Number of latest entries of both kinds that are read; active alarms are among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmCondition:
    """A condition that people should know of."""

    key: str
    """Subject in a few words; constant while the condition lasts."""
    record: Record
    """Description of the condition."""
    after_s: float = 0.0
    """Minimum duration before the alarm is raised. Seconds."""


class Alarms:
    """Raises and ends alarms. One instance per service."""

    def __init__(
        self, fleet: FleetState, manager: FleetManager, database: Database, problems: Callable[[], Mapping[str, Record]]
    ) -> None:
        """problems: problems that the reconciler has found, by key."""
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
                await self._record(RecordKind.ALARM, key, condition.record)
                active_keys.add(key)
        for key in sorted(active_keys - set(current)):
            await self._record(RecordKind.ALARM_OVER, key, Record(kind=RecordKind.ALARM_OVER, subject=""))
            active_keys.remove(key)

    def conditions(self) -> Iterator[AlarmCondition]:
        """Returns the current conditions."""
        yield from self._launch_conditions()
        yield from self._budget_conditions()
        yield from self._orphan_conditions()
        patience_s = 2 * self._fleet.config.times.sweep_s
        for key, record in self._problems().items():
            yield AlarmCondition(key=key, record=record, after_s=patience_s)

    def _launch_conditions(self) -> Iterator[AlarmCondition]:
        for name, pool in sorted(self._fleet.ledger.pools.items()):
            if pool.failures >= BREAKER_FAILURES:
                retry_s = self._fleet.config.times.breaker_s
                record = problem_record("breaker_open", "", failures=pool.failures, pool=name, retry_s=retry_s)
                yield AlarmCondition(key=f"launches of pool {name}", record=record)

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
                record = problem_record(
                    "budget_spent",
                    "",
                    owner=owner,
                    spent_usd=round(spent, 2),
                    budget_usd=budget,
                    usd_per_hour=round(rate, 2),
                )
                yield AlarmCondition(key=f"dollars of {owner}", record=record)

    def _orphan_conditions(self) -> Iterator[AlarmCondition]:
        by_provider: dict[str, list[str]] = {}
        for provider, handle in sorted(self._fleet.ledger.orphans):
            by_provider.setdefault(provider, []).append(handle)
        for provider, handles in by_provider.items():
            record = problem_record(
                "orphans_found",
                "",
                orphans=len(handles),
                provider=provider,
                handle=handles[0],
                quarantine_s=self._fleet.config.times.quarantine_s,
            )
            yield AlarmCondition(key=f"orphans at {provider}", record=record)

    async def _record(self, kind: RecordKind, key: str, record: Record) -> None:
        once = f"fleet:{kind.value}:{self._fleet.ledger.next_decision}"
        await self._manager.record_decision(
            kind, record.values, FLEET_ACTOR, once, key[:2000], cause=record.cause, severity=record.severity
        )


def _active_alarms(session: Session) -> set[str]:
    """Returns the keys of alarms that have begun and not ended in the audit log."""
    query = (
        select(DecisionRow.reason, DecisionRow.kind)
        .where(col(DecisionRow.kind).in_((RecordKind.ALARM.value, RecordKind.ALARM_OVER.value)))
        .order_by(col(DecisionRow.ordinal).desc())
        .limit(MAX_ALARM_ENTRIES)
    )
    latest: dict[str, str] = {}
    for key, kind in session.exec(query):
        latest.setdefault(key, kind)
    return {key for key, kind in latest.items() if kind == RecordKind.ALARM.value}
