"""What people are told of the fleet without asking: it stands in the journal when it begins, and when it is over.

Whoever follows the journal passes it on (the maintainer's webhook does). What stands is read back from the journal at
the start, so that a restart says nothing again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sqlmodel import Session, col, select

from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.database import Database
from astraflow.runtime.logs import get_logger
from maintainer.fleet import spending
from maintainer.fleet.desk import Desk
from maintainer.fleet.fleet import BREAK_AFTER, ITSELF, Fleet
from maintainer.fleet.tables import DecisionRow

log = get_logger()

ALARM, ALARM_OVER = "alarm", "alarm_over"
READ_BACK = 500
"""Entries of both kinds, the latest: what stands is among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """Something that people should know of."""

    key: str
    """What it is about, in a few words: the same as long as it stands."""
    text: str
    severity: str = "warning"
    after_s: float = 0.0
    """It has to stand for so long: less may be a hiccup."""


class Alarms:
    """One for the service."""

    def __init__(self, fleet: Fleet, desk: Desk, database: Database, troubles: Callable[[], Mapping[str, str]]) -> None:
        """troubles: what reconciling has found, by what it is about."""
        self._fleet = fleet
        self._desk = desk
        self._database = database
        self._troubles = troubles
        self._since: dict[str, float] = {}
        """When what stands was seen first, on the clock."""
        self._told: set[str] | None = None
        """What stands by the journal; None before that was read."""

    async def look(self) -> None:
        """Write down what has begun and what is over. What cannot be written now is written the next time."""
        try:
            if self._told is None:
                self._told = await self._database.look(_standing)
            await self._tell(self._told)
        except AstraFlowError as problem:
            log.warning("alarm_not_written", problem=str(problem))

    async def _tell(self, told: set[str]) -> None:
        now, found = self._fleet.clock.now(), {matter.key: matter for matter in self.matters()}
        self._since = {key: self._since.get(key, now) for key in found}
        for key, matter in found.items():
            if key not in told and now - self._since[key] >= matter.after_s:
                await self._note(ALARM, f"{matter.severity}: {matter.text}", key)
                told.add(key)
        for key in sorted(told - set(found)):
            await self._note(ALARM_OVER, f"info: {key}: what was told of it is over", key)
            told.remove(key)

    def matters(self) -> Iterator[Matter]:
        """What is the matter now."""
        yield from self._launches()
        yield from self._money()
        yield from self._orphans()
        patience_s = 2 * self._fleet.config.times.sweep_s
        for key, text in self._troubles().items():
            yield Matter(key=key, text=text, after_s=patience_s)

    def _launches(self) -> Iterator[Matter]:
        for name, pool in sorted(self._fleet.ledger.pools.items()):
            if pool.failures >= BREAK_AFTER:
                text = (
                    f"{pool.failures} launches of pool {name} failed in a row; one is tried every "
                    f"{self._fleet.config.times.breaker_s:.0f} s until one works"
                )
                yield Matter(key=f"launches of pool {name}", text=text)

    def _money(self) -> Iterator[Matter]:
        """A cap is spent when what is there takes the rest within the hour: no node is had any more then."""
        now, everything = self._fleet.clock.wall(), tuple(self._fleet.ledger.records.values())
        caps = [("all pools", everything, self._fleet.limits.usd_per_day_max)]
        for name, pool in sorted(self._fleet.ledger.pools.items()):
            of_pool = tuple(record for record in everything if record.instance.pool == name)
            caps.append((f"pool {name}", of_pool, pool.spec.usd_per_day_max))
        for what, records, cap in caps:
            if cap is None:
                continue
            spent, rate = spending.today(records, now=now), spending.rate(records)
            if spent > 0 and spent + rate >= cap:
                spending_now = f"{spent:.2f} of {cap:.2f} dollars of the day are spent at {rate:.2f} an hour"
                yield Matter(key=f"dollars of {what}", text=f"{what}: {spending_now}: no more nodes")

    def _orphans(self) -> Iterator[Matter]:
        by_provider: dict[str, list[str]] = {}
        for provider, handle in sorted(self._fleet.ledger.orphans):
            by_provider.setdefault(provider, []).append(handle)
        for provider, handles in by_provider.items():
            text = (
                f"{len(handles)} machines at provider {provider} have our tag and no launch ({handles[0]} first); "
                f"they are ended after {self._fleet.config.times.quarantine_s:.0f} s"
            )
            yield Matter(key=f"orphans at {provider}", text=text)

    async def _note(self, kind: str, message: str, key: str) -> None:
        once = f"fleet:{kind}:{self._fleet.ledger.next_decision}"
        await self._desk.noted(kind, message[:2000], ITSELF, once, key[:2000])


def _standing(session: Session) -> set[str]:
    """What the journal says has begun and is not over."""
    query = (
        select(DecisionRow.reason, DecisionRow.kind)
        .where(col(DecisionRow.kind).in_((ALARM, ALARM_OVER)))
        .order_by(col(DecisionRow.ordinal).desc())
        .limit(READ_BACK)
    )
    latest: dict[str, str] = {}
    for key, kind in session.exec(query):
        latest.setdefault(key, kind)
    return {key for key, kind in latest.items() if kind == ALARM}
