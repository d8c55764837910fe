"""A run whose nodes the fleet service starts: nodes are lost, the pool scales, the service restarts."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.plans import Actor, PlanRequest, Role
from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.records import render_summary
from tests.system.processes import PATIENCE_S, RunningRun, assert_balanced, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

ALICE = Actor(name="alice", role=Role.ADMIN)

STEADY = (
    *("--fleet", "--no-web", "--nodes", "2"),
    *("--set", "stop.reward=2.0"),
    *("--set", "stop.steps=1000000"),
    *("--set", "policies.solver.backend.step_s=0.5"),
    *("--set", "dataflow.pools={local={mode='on', min_nodes=2, max_nodes=2}}"),
)
"""A pool of two, independent of the rule's target on a slow machine."""


@asynccontextmanager
async def fleet_of(run: RunningRun) -> AsyncIterator[FleetPlaneClient]:
    await run.report()
    async with connect_fleet(run.facts()["fleet"], run.token()) as fleet:
        yield fleet


async def until(
    fleet: FleetPlaneClient, holds: Callable[[FleetStatus], bool], *, patience_s: float = PATIENCE_S
) -> FleetStatus:
    """Returns the first status for which a condition holds; waits while the service is away."""
    deadline, status = time.monotonic() + patience_s, None
    while time.monotonic() < deadline:
        try:
            status = await fleet.status()
        except AstraFlowError:
            status = None
        if status is not None and holds(status):
            return status
        await asyncio.sleep(0.1)
    raise AssertionError(f"it did not come to that within {patience_s:.0f} s: {status}")


def ready(nodes: int) -> Callable[[FleetStatus], bool]:
    """Returns whether exactly this many nodes are ready, and no other instance exists."""
    return lambda status: dict(status.pools[0].nodes) == {InstanceState.READY: nodes}


def machines(run: RunningRun) -> dict[str, int]:
    """Returns the process group of each machine, by launch."""
    notes = (run.directory / "fleet" / "providers" / "here").glob("*/machine.json")
    return {note.parent.name: int(json.loads(note.read_text())["pid"]) for note in notes}


async def test_the_fleet_replaces_lost_nodes_scales_up_and_survives_a_kill(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *STEADY) as run, fleet_of(run) as fleet:
        await until(fleet, ready(2))
        await run.steps_more(3)

        lost = (await fleet.instances())[0].id
        os.killpg(machines(run)[lost], signal.SIGKILL)
        await until(fleet, lambda status: not ready(2)(status))  # the service has noticed the loss
        status = await until(fleet, ready(2))
        assert lost not in {instance.id for instance in await fleet.instances()}

        pool = status.pools[0]  # override: in mode `on`, the rule would set its own size again
        by_hand = replace(pool.spec, mode=Mode.ADVISE, max_nodes=8)
        await fleet.put_pool(by_hand, observed_version=pool.version, actor=ALICE, key="mode", reason="by hand")
        request = PlanRequest(pool=pool.spec.id, actor=ALICE, reason="a demand step", target=4)
        plan = await fleet.plan(request)
        await fleet.apply(plan.id, key="step", approver=ALICE)
        await until(fleet, ready(4))
        known = {instance.id for instance in await fleet.instances()}

        os.kill(run.pids()["fleet"], signal.SIGKILL)
        await run.steps_more(3)
        await until(fleet, ready(4))
        assert {instance.id for instance in await fleet.instances()} == known
        report = await run.steps_more(3)
        assert report.streams[0].groups.buffered > 0
        assert_balanced(report)
        pids = list(machines(run).values())
    assert not [pid for pid in pids if _is_alive(pid)], "a machine was left behind"


FOLLOWING = (
    *("--fleet", "--no-web", "--nodes", "3"),
    *("--set", "stop.reward=2.0"),
    *("--set", "stop.steps=1000000"),
    *("--set", "policies.solver.backend.step_s=0.5"),
    *("--set", "policies.solver.backend.speed_changes=[{from_step=30, factor=2.5}]"),
    *("--set", "nodes.capacity=2"),
    *("--set", "flows.train.workflow.max_new_tokens=500"),
    *("--set", "nodes.engine.tokens={mean=60.0}"),
    *("--set", "dataflow.pools={local={mode='on', min_nodes=1, max_nodes=12}}"),
    *("--set", "evaluations={}"),
)
"""About three of these nodes match the rule's target; the trainer needs more of them after thirty steps."""


async def test_a_pool_in_mode_on_follows_losses_and_demand_without_flapping(tmp_path: Path) -> None:
    async with running("smoke", tmp_path / "run", *FOLLOWING) as run, fleet_of(run) as fleet:
        await until(fleet, lambda status: status.pools[0].nodes.get(InstanceState.READY, 0) >= 3)
        await run.steps_more(3)
        pool = (await fleet.status()).pools[0]
        assert pool.can_inject_fault
        loss = await fleet.inject_fault(pool.spec.id, share=0.3, actor=ALICE, key="drill", reason="a drill")
        assert len(loss.lost) == 1
        await until(fleet, lambda status: status.pools[0].rule_target is not None)
        before = await until(fleet, is_whole)
        await run.until(lambda report: report.streams[0].training.steps >= 30)
        after = await until(fleet, lambda status: status.pools[0].target > before.pools[0].target and is_whole(status))

        kinds = [decision.kind.value for decision in await fleet.decisions()]
        sizes = [render_summary(decision) for decision in await fleet.decisions() if decision.kind.value == "apply"]
        instances = await fleet.instances(with_gone=True)
        ended_ids = {instance.id for instance in instances if instance.state is InstanceState.GONE}
        assert kinds.count("fault") == 1
        assert not [size for size in sizes if "drained" in size], "nodes were retired during a shortage"
        assert ended_ids == set(loss.lost)
        assert len(instances) == after.pools[0].target + 1
        assert_balanced(await run.steps_more(1))


def is_whole(status: FleetStatus) -> bool:
    """Returns whether the pool is at its target, without other instances."""
    pool = status.pools[0]
    return dict(pool.nodes) == {InstanceState.READY: pool.target}


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
