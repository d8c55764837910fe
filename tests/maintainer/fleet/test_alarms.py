"""What the service tells people of itself: once when it begins, once when it is over, and not again after a restart."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import StorageFull
from maintainer.fleet.alarms import Alarms
from tests.maintainer.fleet.parts import POOL, Parts, build, spec
from tests.maintainer.fleet.test_reconciler import running, stray

pytestmark = pytest.mark.anyio


def alarms(parts: Parts) -> Alarms:
    return Alarms(parts.fleet, parts.desk, parts.database, parts.reconciler.troubles)


async def told(parts: Parts) -> list[tuple[str, str]]:
    """Kinds and messages of alarms, oldest first."""
    found, _ = await parts.ledger.decisions(pool="", before=None, limit=1000)
    return [(one.kind, one.message) for one in reversed(found) if one.kind.startswith("alarm")]


async def test_launches_that_fail_in_a_row_are_told_once_and_so_is_that_one_works(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    alarm = alarms(parts)
    await alarm.look()
    assert await told(parts) == []
    await parts.want(3)
    await parts.pass_time(6.0)
    for machine in parts.cloud.alive():
        machine.is_stuck = True
    await parts.pass_time(70.0)
    assert parts.ledger.pools[POOL].failures >= 3
    for _ in range(3):
        await alarm.look()
    [(kind, message)] = await told(parts)
    assert kind == "alarm"
    assert message.startswith("warning: 3 launches of pool eu failed in a row")
    await alarms(parts).look()  # the next process
    assert len(await told(parts)) == 1, "a restart says nothing again"
    await parts.pass_time(700.0)  # the breaker lets one try
    await parts.want(1)
    await parts.pass_time(120.0)
    assert parts.ledger.pools[POOL].failures == 0
    await alarms(parts).look()
    assert [kind for kind, _ in await told(parts)] == ["alarm", "alarm_over"]


async def test_a_cap_that_is_spent_is_told(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(usd_per_day_max=10.0))
    await parts.want(3)  # at a dollar an hour each
    await parts.pass_time(3600.0, tick_s=60.0)
    alarm = alarms(parts)
    await alarm.look()
    assert await told(parts) == []
    await parts.pass_time(1.5 * 3600.0, tick_s=60.0)
    await alarm.look()
    [(kind, message)] = await told(parts)
    assert kind == "alarm"
    assert "of 10.00 dollars of the day are spent at 3.00 an hour" in message


async def test_machines_without_a_launch_are_told_together(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    stray(parts.cloud)
    await parts.pass_time(61.0)
    alarm = alarms(parts)
    await alarm.look()
    await alarm.look()
    [(_, message)] = await told(parts)
    assert "1 machines at provider cloud have our tag and no launch" in message
    await parts.pass_time(600.0)
    await alarm.look()
    assert [kind for kind, _ in await told(parts)] == ["alarm", "alarm_over"]


async def test_a_provider_that_is_away_for_a_moment_is_no_alarm(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    unread: dict[str, str] = {}
    alarm = Alarms(parts.fleet, parts.desk, parts.database, lambda: unread)
    unread["provider cloud"] = "provider cloud cannot be read: 503"
    await alarm.look()
    parts.clock.advance(100.0)
    await alarm.look()
    assert await told(parts) == []
    parts.clock.advance(30.0)
    await alarm.look()
    assert await told(parts) == [("alarm", "warning: provider cloud cannot be read: 503")]


async def test_what_cannot_be_written_is_written_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = await build(tmp_path)
    alarm = Alarms(parts.fleet, parts.desk, parts.database, lambda: {"a": "something is the matter"})
    await alarm.look()
    parts.clock.advance(1000.0)
    noted = parts.desk.noted

    async def full(*_: Any, **__: Any) -> Any:
        raise StorageFull("the disk is full")

    monkeypatch.setattr(parts.desk, "noted", full)
    await alarm.look()
    assert await told(parts) == []
    monkeypatch.setattr(parts.desk, "noted", noted)
    await alarm.look()
    assert len(await told(parts)) == 1
