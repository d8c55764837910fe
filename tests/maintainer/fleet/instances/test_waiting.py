"""Ages, waits and steps of the clock: nodes are replaced a few at a time, and launches survive long outages."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.instances import Cause, InstanceState
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.nodes import JoinToken
from maintainer.fleet.providers.base import RetryError, UnknownError
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud, CloudProvider
from tests.maintainer.fleet.instances.test_random_hour import JumpyClock
from tests.maintainer.fleet.parts import ALICE, POOL, START, Parts, Run, build, spec

pytestmark = pytest.mark.anyio


class Outage:
    """Fault of a provider's launches while it lasts."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def __call__(self, point: str) -> None:
        if point == "launch before" and self.error is not None:
            raise self.error

    def provider(self, cloud: Cloud) -> CloudProvider:
        return CloudProvider(cloud, fault=self)


class SilentRun(Run):
    """Dataflow that gives no tokens while it is away."""

    async def mint_join_token(self, *arguments: Any, **options: Any) -> JoinToken:
        if self.is_away:
            raise Unavailable("dataflow is away")
        return await super().mint_join_token(*arguments, **options)


def working(parts: Parts) -> int:
    """Returns the number of nodes that were not asked to drain."""
    return sum(machine.instance.handle.launch_id not in parts.run.drained for machine in parts.cloud.alive())


@pytest.mark.parametrize("nodes", [1, 8, 20])
@pytest.mark.parametrize("spare", [0, 2])
async def test_nodes_of_one_age_are_replaced_a_few_at_a_time(tmp_path: Path, nodes: int, spare: int) -> None:
    parts = await build(tmp_path, pool=spec(max_nodes=nodes + spare), times={"max_age_s": 14400.0})
    await parts.want(nodes)
    await parts.pass_time(120.0)
    initial = {record.id for record in parts.ledger.alive()}
    fewest = nodes
    for _ in range(476):
        await parts.pass_time(30.0, tick_s=15.0)
        fewest = min(fewest, working(parts) if spare else parts.states().get("ready", 0))
        assert len(parts.cloud.alive()) <= nodes + spare
    assert not initial & {record.id for record in parts.ledger.alive()}
    assert set(parts.run.drained) >= initial
    assert fewest >= nodes - (0 if spare else max(1, nodes // 10))


async def test_no_more_than_a_few_nodes_are_replaced_while_launches_fail(tmp_path: Path) -> None:
    outage = Outage(None)
    times = {"max_age_s": 7200.0, "start_timeout_s": 60.0}
    parts = await build(tmp_path, times=times, provider=outage.provider)
    await parts.want(8)
    await parts.pass_time(120.0)
    outage.error = UnknownError("out of order")
    await parts.pass_time(6600.0, tick_s=15.0)
    assert parts.states()["ready"] >= 7
    await parts.pass_time(900.0, tick_s=15.0)
    assert len(parts.run.drained) == 8, "an instance drains before it ends by its age"


async def test_nodes_of_a_pool_without_replacements_drain_one_after_the_other(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.OFF), times={"max_age_s": 7200.0})
    await parts.want(8)
    await parts.pass_time(120.0)
    ready = [8]
    for _ in range(240):
        await parts.pass_time(30.0, tick_s=15.0)
        ready.append(parts.states().get("ready", 0))
    assert ready[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(ready)) <= 1


@pytest.mark.parametrize("steps", [(7 * 86400.0, 0.0, 3600.0), (-3600.0, 0.0, 30.0)])
async def test_steps_of_the_wall_clock_end_no_node(tmp_path: Path, steps: tuple[float, ...]) -> None:
    true = ManualClock(START)
    clock, cloud = JumpyClock(true), Cloud(true, boot_s=20.0)
    parts = await build(tmp_path, clock=clock, cloud=cloud, pool=spec(drain_s=300.0))
    await parts.want(6)
    await parts.pass_time(60.0)
    for number, ahead_s in enumerate(steps):
        await parts.want(7 + number)
        await parts.pass_time(5.0)
        clock.ahead_s = ahead_s
        await parts.pass_time(60.0)
        assert parts.states() == {"ready": 7 + number}
    assert cloud.starts == 6 + len(steps)
    assert parts.fleet.pool(POOL).failures == 0


async def test_a_step_of_the_wall_clock_cuts_no_drain_short_and_delays_no_retry(tmp_path: Path) -> None:
    true = ManualClock(START)
    clock, cloud = JumpyClock(true), Cloud(true, boot_s=20.0)
    parts = await build(tmp_path, clock=clock, cloud=cloud, pool=spec(drain_s=300.0), run=StayingRun(cloud))
    await parts.want(2)
    await parts.pass_time(60.0)
    await parts.want(1)
    await parts.pass_time(10.0)
    clock.ahead_s = 3600.0
    await parts.pass_time(200.0)
    assert parts.states() == {"ready": 1, "draining": 1}
    cloud.end_s = 30.0
    await parts.pass_time(115.0)
    assert parts.states() == {"ready": 1, "retiring": 1}
    clock.ahead_s = 0.0
    await parts.pass_time(60.0)
    assert parts.states() == {"ready": 1}


class StayingRun(Run):
    """Dataflow whose draining nodes keep on working."""

    async def drain_node(self, *_: Any, **__: Any) -> str:
        return "it drains"


@pytest.mark.parametrize("away", ["kill switch", "dataflow", "provider"])
async def test_a_launch_survives_an_hour_of_waiting(tmp_path: Path, away: str) -> None:
    clock, outage = ManualClock(START), Outage(RetryError("no route") if away == "provider" else None)
    cloud = Cloud(clock, boot_s=20.0, end_s=5.0)
    parts = await build(tmp_path, cloud=cloud, clock=clock, run=SilentRun(cloud), provider=outage.provider)
    await parts.want(4)
    launches = {record.id for record in parts.ledger.alive()}
    scope = KillScope.ALL if away == "kill switch" else KillScope.NONE
    await parts.fleet_manager.kill_switch(scope, actor=ALICE, key="on", reason="a test")
    parts.run.is_away = away == "dataflow"
    await parts.pass_time(3600.0, tick_s=15.0)
    assert parts.states() == {"intended": 4}
    cause = "launch_held" if away == "kill switch" else "launch_waits"
    assert f"{cause} of {min(launches)}" in parts.reconciler.problems()
    outage.error, parts.run.is_away = None, False
    await parts.fleet_manager.kill_switch(KillScope.NONE, actor=ALICE, key="off", reason="a test")
    await parts.pass_time(120.0)
    assert parts.states() == {"ready": 4}
    assert {record.id for record in parts.ledger.alive()} == launches
    assert parts.fleet.pool(POOL).failures == 0


async def test_a_node_that_could_not_join_for_an_hour_is_no_failed_launch(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(4)
    await parts.pass_time(5.0)
    parts.run.is_away = True
    await parts.pass_time(3600.0, tick_s=15.0)
    parts.run.is_away = False
    parts.run.never_ready = {record.id for record in parts.ledger.alive()}
    await parts.pass_time(15.0)
    parts.run.never_ready = set()
    await parts.pass_time(60.0)
    assert (parts.states(), parts.cloud.starts) == ({"ready": 4}, 4)
    assert parts.fleet.pool(POOL).failures == 0


async def test_an_unknown_error_fails_a_launch_after_its_time(tmp_path: Path) -> None:
    parts = await build(tmp_path, pool=spec(mode=Mode.OFF), provider=Outage(UnknownError("out of order")).provider)
    await parts.want(1)
    await parts.pass_time(800.0, tick_s=15.0)
    assert parts.states() == {"intended": 1}
    await parts.pass_time(300.0, tick_s=15.0)
    assert parts.fleet.pool(POOL).failures == 1
    assert [record.instance.cause for record in parts.ledger.records.values()] == [Cause.FAILED]


async def test_a_node_that_becomes_ready_as_its_time_ends_is_not_retired(tmp_path: Path) -> None:
    parts = await build(tmp_path)
    await parts.want(1)
    await parts.tick()
    (launch,) = (record.id for record in parts.ledger.alive())
    parts.run.never_ready.add(launch)
    await parts.pass_time(115.0)
    parts.clock.advance(30.0)
    parts.run.never_ready.clear()
    await parts.tick()
    assert parts.ledger.records[launch].instance.state is InstanceState.READY


async def test_an_instance_of_before_a_step_back_and_a_restart_ends(tmp_path: Path) -> None:
    true = ManualClock(START)
    clock, cloud = JumpyClock(true), Cloud(true, boot_s=20.0, end_s=100.0, lag_s=30.0)
    parts = await build(tmp_path, clock=clock, cloud=cloud)
    await parts.want(2)
    await parts.pass_time(90.0)
    await parts.want(1)
    await parts.pass_time(20.0)
    clock.ahead_s = -10_000.0
    again = await build(tmp_path, clock=clock, cloud=cloud, database=parts.database, run=parts.run)
    await again.pass_time(300.0)
    assert again.states() == {"ready": 1}
