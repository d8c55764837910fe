"""Alarms of the service: one when a problem starts, one when it ends, and none again after a restart."""

import re
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import StorageFull
from astraflow.contract.records import Record, problem_record, render_summary
from maintainer.fleet.alarms import Alarms
from tests.maintainer.fleet.instances.test_reconciler import running, stray
from tests.maintainer.fleet.parts import POOL, Parts, build, spec

pytestmark = pytest.mark.anyio


def alarms(parts: Parts) -> Alarms:
    return Alarms(parts.fleet, parts.fleet_manager, parts.database, parts.reconciler.problems)


async def alarm_messages(parts: Parts) -> list[tuple[str, str]]:
    """Returns kinds and messages of alarms, oldest first."""
    decisions, _ = await parts.ledger.decisions(pool="", before=None, limit=1000)
    return [
        (decision.kind.value, render_summary(decision))
        for decision in reversed(decisions)
        if decision.kind.value.startswith("alarm")
    ]


async def test_failed_launches_in_a_row_raise_one_alarm_that_ends_with_a_success(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    alarm = alarms(parts)
    await alarm.check()
    assert await alarm_messages(parts) == []
    await parts.want(3)
    await parts.pass_time(6.0)
    for machine in parts.cloud.alive():
        machine.is_stuck = True
    await parts.pass_time(70.0)
    assert parts.ledger.pools[POOL].failures >= 3
    for _ in range(3):
        await alarm.check()
    [(kind, message)] = await alarm_messages(parts)
    assert kind == "alarm"
    assert message.partition(" launches ")[0] == "3"
    assert f"pool {POOL}" in message
    await alarms(parts).check()  # simulates a restart
    assert len(await alarm_messages(parts)) == 1, "a restart does not repeat the alarm"
    await parts.pass_time(700.0)  # the circuit breaker allows one attempt
    await parts.want(1)
    await parts.pass_time(120.0)
    assert parts.ledger.pools[POOL].failures == 0
    await alarms(parts).check()
    assert [kind for kind, _ in await alarm_messages(parts)] == ["alarm", "alarm_over"]


async def test_a_daily_budget_that_will_be_exhausted_raises_an_alarm(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(usd_per_day_max=10.0))
    await parts.want(3)  # each costs one dollar an hour
    await parts.pass_time(3600.0, tick_s=60.0)
    alarm = alarms(parts)
    await alarm.check()
    assert await alarm_messages(parts) == []
    await parts.pass_time(1.5 * 3600.0, tick_s=60.0)
    await alarm.check()
    [(kind, message)] = await alarm_messages(parts)
    assert kind == "alarm"
    assert f"pool {POOL}:" in message
    assert {"10.00", "3.00"} <= set(re.findall(r"\d+\.\d\d", message))


async def test_orphaned_instances_raise_one_alarm_per_provider(tmp_path: Path) -> None:
    parts = await running(tmp_path)
    orphan = stray(parts.cloud)
    await parts.pass_time(61.0)
    alarm = alarms(parts)
    await alarm.check()
    await alarm.check()
    [(_, message)] = await alarm_messages(parts)
    assert message.partition(" orphaned ")[0] == "1"
    assert orphan.id in message
    await parts.pass_time(600.0)
    await alarm.check()
    assert [kind for kind, _ in await alarm_messages(parts)] == ["alarm", "alarm_over"]


async def test_a_provider_that_fails_briefly_raises_no_alarm(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    unread: dict[str, Record] = {}
    alarm = Alarms(parts.fleet, parts.fleet_manager, parts.database, lambda: unread)
    unread["provider cloud"] = problem_record("provider_unreadable", "", provider="cloud", error="503")
    await alarm.check()
    parts.clock.advance(100.0)
    await alarm.check()
    assert await alarm_messages(parts) == []
    parts.clock.advance(30.0)
    await alarm.check()
    assert await alarm_messages(parts) == [("alarm", "provider cloud cannot be read: 503")]


async def test_an_alarm_that_cannot_be_written_is_written_at_the_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await build(tmp_path)
    alarm = Alarms(
        parts.fleet,
        parts.fleet_manager,
        parts.database,
        lambda: {"a": problem_record("instance_returned", "", launch="01X")},
    )
    await alarm.check()
    parts.clock.advance(1000.0)
    record_decision = parts.fleet_manager.record_decision

    async def full(*_: Any, **__: Any) -> Any:
        raise StorageFull("the disk is full")

    monkeypatch.setattr(parts.fleet_manager, "record_decision", full)
    await alarm.check()
    assert await alarm_messages(parts) == []
    monkeypatch.setattr(parts.fleet_manager, "record_decision", record_decision)
    await alarm.check()
    assert len(await alarm_messages(parts)) == 1


async def test_a_machine_that_ends_by_itself_before_its_node_is_ready_is_a_failed_launch(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    await parts.pass_time(6.0)
    [machine] = parts.cloud.alive()
    parts.cloud.end(machine, after_s=30.0)  # the provider lists it as terminating for a while
    await parts.pass_time(10.0)
    assert parts.ledger.pools[POOL].failures == 1
