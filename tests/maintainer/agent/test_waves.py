"""Nodes that leave without a request wake the maintainer, with or without a provider's notice."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet.instances import LaunchId
from astraflow.contract.fleet.plans import PlanRequest
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from tests.maintainer.fleet.parts import ALICE, POOL
from tests.maintainer.parts import Scene, advice, scene

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


async def grown(here: Scene, nodes: int = 10) -> list[LaunchId]:
    """Grows a pool to `nodes` ready nodes; returns its launches, oldest first."""
    await here.parts.want(nodes)
    await here.parts.pass_time(60.0)
    here.dataflow.recommendations = (advice(present=nodes, target=nodes, low=1.0, high=20.0),)
    assert here.parts.states() == {"ready": nodes}
    return sorted(record.id for record in here.parts.ledger.alive(POOL))


async def preempt(here: Scene, launches: list[LaunchId]) -> None:
    """Preempts nodes with two minutes' notice, and runs a sweep."""
    for launch in launches:
        (machine,) = here.parts.cloud.find(launch)
        here.parts.cloud.preempt(machine, in_s=120.0)
    await here.parts.reconciler.sweep()


async def look(here: Scene) -> None:
    """Runs one heartbeat and one check of the maintainer."""
    await here.maintainer.heartbeat()
    await here.maintainer.check()


def waves(here: Scene) -> list[float]:
    """Returns the number of preempted nodes in each wake."""
    bodies: list[Any] = [entry.body for entry in here.entries("wake")]
    signals = [signal for body in bodies for signal in body["signals"]]
    return [signal["value"] for signal in signals if signal["signal"] == "preemption_wave"]


async def test_two_of_ten_preemption_notices_wake_the_model_during_the_drain(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        launches = await grown(here)
        await preempt(here, launches[:2])
        assert here.parts.states()["draining"] == 2
        await look(here)
        assert waves(here) == [2.0]
        assert await losses_by_cause(here) == {"preempted": 2}


@pytest.mark.long
async def test_losses_with_and_without_notice_form_one_wave(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        launches = await grown(here)
        await preempt(here, launches[:1])
        await look(here)
        assert waves(here) == []
        await here.parts.records.record_event(launches[1], InstanceEvent.GONE)
        await look(here)
        assert waves(here) == [2.0]
        assert await losses_by_cause(here) == {"preempted": 1, "lost": 1}


@pytest.mark.long
async def test_requested_removals_do_not_count_as_a_wave(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        launches = await grown(here)
        request = PlanRequest(pool=POOL, actor=ALICE, reason="a test", retire=tuple(launches[:4]))
        plan = await here.parts.fleet_manager.plans.make(request)
        await here.parts.fleet_manager.apply(plan.id, key="go", approver=ALICE)
        await preempt(here, launches[:4])
        await look(here)
        await here.pass_time(300.0)
        assert waves(here) == []


@pytest.mark.long
async def test_a_wave_includes_ended_nodes_and_ends_with_its_window(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy", config={"watch": {"wake_pause_s": 0.0, "window_s": 900.0}}) as here:
        launches = await grown(here)
        await preempt(here, launches[:4])
        await here.pass_time(850.0, step_s=50.0)
        assert here.parts.states() == {"ready": 10}, "the nodes were replaced"
        assert waves(here)[-1] == 4.0
        last_at = here.entries("wake")[-1].at
        await here.pass_time(3600.0, step_s=50.0)
        assert here.entries("wake")[-1].at - last_at <= 900.0


async def losses_by_cause(here: Scene) -> dict[str, int]:
    """Returns the pool's losses by cause from the fleet status."""
    status = await here.fleet.status()
    (pool,) = [pool for pool in status.pools if pool.spec.id == POOL]
    return {cause.value: number for cause, number in pool.losses.items()}
