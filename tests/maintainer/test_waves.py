"""Nodes that go without having been asked wake the maintainer, with their provider's notice or without one."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet import LaunchId, PlanRequest
from maintainer.fleet.lifecycle import Sight
from tests.maintainer.fleet.parts import ALICE, POOL
from tests.maintainer.parts import Scene, advice, scene

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


async def grown(here: Scene, nodes: int = 10) -> list[LaunchId]:
    """A pool that works, and that nobody changes; its launches, oldest first."""
    await here.parts.want(nodes)
    await here.parts.pass_time(60.0)
    here.dataflow.advice = (advice(present=nodes, target=nodes, low=1.0, high=20.0),)
    assert here.parts.states() == {"ready": nodes}
    return sorted(record.id for record in here.parts.ledger.alive(POOL))


async def take_away(here: Scene, launches: list[LaunchId]) -> None:
    """With two minutes' notice, which the next sweep finds."""
    for launch in launches:
        (machine,) = here.parts.cloud.find(launch)
        here.parts.cloud.take_away(machine, in_s=120.0)
    await here.parts.reconciler.sweep()


async def look(here: Scene) -> None:
    """At this moment, with what people told it last."""
    await here.maintainer.beat()
    await here.maintainer.look()


def waves(here: Scene) -> list[float]:
    """How many nodes each wake was told of."""
    bodies: list[Any] = [entry.body for entry in here.entries("wake")]
    told = [signal for body in bodies for signal in body["signals"]]
    return [signal["value"] for signal in told if signal["signal"] == "preemption_wave"]


async def test_two_of_ten_that_are_taken_away_with_notice_wake_it_while_they_still_drain(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        launches = await grown(here)
        await take_away(here, launches[:2])
        assert here.parts.states()["draining"] == 2
        await look(here)
        assert waves(here) == [2.0]
        assert await told(here) == {"taken": 2}


async def test_one_with_notice_and_one_without_are_a_wave_together(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        launches = await grown(here)
        await take_away(here, launches[:1])
        await look(here)
        assert waves(here) == []
        await here.parts.fleet.see(launches[1], Sight.GONE)
        await look(here)
        assert waves(here) == [2.0]
        assert await told(here) == {"taken": 1, "lost": 1}


async def test_what_was_ordered_away_is_no_wave_though_the_provider_takes_it_too(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        launches = await grown(here)
        request = PlanRequest(pool=POOL, actor=ALICE, reason="a test", retire=tuple(launches[:4]))
        plan = await here.parts.desk.plans.make(request)
        await here.parts.desk.apply(plan.id, key="go", approver=ALICE)
        await take_away(here, launches[:4])
        await look(here)
        await here.pass_time(300.0)
        assert waves(here) == []


async def test_a_wave_goes_on_with_those_that_are_gone_and_is_over_with_its_window(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy", config={"watch": {"rest_s": 0.0, "window_s": 900.0}}) as here:
        launches = await grown(here)
        await take_away(here, launches[:4])
        await here.pass_time(850.0, step_s=50.0)
        assert here.parts.states() == {"ready": 10}, "they were brought back"
        assert waves(here)[-1] == 4.0
        last_at = here.entries("wake")[-1].at
        await here.pass_time(3600.0, step_s=50.0)
        assert here.entries("wake")[-1].at - last_at <= 900.0


async def told(here: Scene) -> dict[str, int]:
    """What a pool's losses are, as a model reads them."""
    status = await here.fleet.status()
    (pool,) = [one for one in status.pools if one.spec.id == POOL]
    return {cause.value: number for cause, number in pool.losses.items()}
