"""A run whose nodes are instances of a cloud: EC2's API over HTTP, and processes that run their boot scripts."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.causes import Cause
from astraflow.contract.fleet import FleetStatus, Instance, InstanceState, PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.reports import NodeState, Report
from tests.fakes.ec2_server import CREDENTIALS, Ec2Server, serving_ec2
from tests.fakes.instances import InstanceRunner, running_instances
from tests.system.processes import PATIENCE_S, ROOT, RunningRun, assert_balanced, command, running
from tests.system.test_fleet import ALICE, ready, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REGION = "eu-west-1"
CLOUD = PoolId("cloud")

RECIPE = """
extends = "{smoke}"
name = "smoke"

[stop]
reward = 2.0
steps = 1000000

[policies.solver.backend]
step_s = 0.5

[fleet]
times = {{ sweep_s = 1.0, quarantine_s = 10.0, dead_man_s = 30.0 }}

[fleet.providers.aws]
kind = "ec2"
regions = ["{region}"]
types = {{ "g6.xlarge" = 0.8 }}
endpoint_url = "{url}"
listing_lag_s = 1.0
launch_delay_s = 5.0
machine = {{ image_id = "ami-12c6146b" }}
boot = {{ program = {program}, end = ["true"] }}

[fleet.pools.cloud]
provider = "aws"
mode = "up-only"
min_nodes = 1
max_nodes = 3
is_spot = true
drain_s = 5.0
capacity = 32
"""


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Server]:
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    with serving_ec2() as server:
        yield server


@pytest.fixture
def instances(ec2: Ec2Server, tmp_path: Path) -> Iterator[InstanceRunner]:
    with running_instances(ec2.client(REGION), tmp_path / "instances") as runner:
        yield runner


@asynccontextmanager
async def cloud_run(ec2: Ec2Server, directory: Path) -> AsyncIterator[tuple[RunningRun, FleetPlaneClient]]:
    recipe = directory / "recipe.toml"
    program = [str(part) for part in command()]
    recipe.write_text(
        RECIPE.format(smoke=ROOT / "recipes/smoke/recipe.toml", region=REGION, url=ec2.url, program=program)
    )
    async with running(str(recipe), directory / "run", "--fleet", "--no-web", gone_within_s=30.0) as run:
        await run.report()
        async with connect_fleet(run.facts()["fleet"], run.token()) as fleet:
            yield run, fleet


async def change(fleet: FleetPlaneClient, target: int) -> FleetStatus:
    """The pool at its new size."""
    request = PlanRequest(pool=CLOUD, actor=ALICE, reason=f"{target} will do", target=target)
    plan = await fleet.plan(request)
    await fleet.apply(plan.id, key=f"to {target} {plan.id}", approver=ALICE)
    return await until(fleet, ready(target))


async def test_a_pool_of_instances_grows_drains_shrinks_and_survives_an_interruption(
    ec2: Ec2Server, instances: InstanceRunner, tmp_path: Path
) -> None:
    async with cloud_run(ec2, tmp_path) as (run, fleet):
        await until(fleet, ready(1))
        await change(fleet, 2)
        launched = {one.id: one for one in await fleet.instances()}
        assert set(launched) == nodes(await run.steps_more(2))
        machines = {one.id: instances.machines[instance_id(one)] for one in launched.values()}
        for machine in machines.values():
            assert not [line for line in machine.command_lines() if "afj." in line]  # join tokens begin so
            assert "ASTRAFLOW_TOKEN" not in (machine.directory / "user-data").read_text()

        await change(fleet, 1)
        (kept,) = await fleet.instances()
        (gone,) = [one for one in await fleet.instances(with_gone=True) if one.state is InstanceState.GONE]
        assert gone.draining_at is not None
        # A machine that ended with its node was gone before it had to be asked.
        assert gone.retiring_at is None or gone.draining_at <= gone.retiring_at
        assert '"event": "left"' in machines[gone.id].log  # it said goodbye
        assert "ends the machine (status 0)" in machines[gone.id].log
        report = await run.steps_more(2)
        assert nodes(report) == {kept.id}
        assert_balanced(report)

        instances.interrupt(instance_id(kept), in_s=12.0)
        await until(fleet, lambda status: not ready(1)(status))
        await until(fleet, ready(1))  # another one in its place
        assert kept.id not in {one.id for one in await fleet.instances()}
        # The node heard of it from the machine, and said so: that may arrive after the end itself.
        await until(fleet, lambda status: status.pools[0].losses == {Cause.TAKEN: 1})
        (taken,) = [one for one in await fleet.instances(with_gone=True) if one.id == kept.id]
        assert taken.cause is Cause.TAKEN
        assert "preemption_notice" in machines[kept.id].log
        assert_balanced(await run.steps_more(2))
    await nobody_is_left(instances)


async def test_what_a_node_was_let_in_with_lets_in_nobody_else(
    ec2: Ec2Server, instances: InstanceRunner, tmp_path: Path
) -> None:
    """Somebody who reads the user data of an instance that works finds a token that is used up."""
    async with cloud_run(ec2, tmp_path) as (run, fleet):
        await until(fleet, ready(1))
        (machine,) = instances.machines.values()
        (secret,) = [word for word in (machine.directory / "user-data").read_text().split() if word.startswith("afj.")]
        given = {**os.environ, "ASTRAFLOW_TOKEN": secret}
        stolen = [*command("join", run.facts()["dataflow"], "--name", "thief")]
        thief = subprocess.run(stolen, env=given, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        assert thief.returncode != 0
        assert "used" in thief.stdout + thief.stderr
        assert len(nodes(await run.report())) == 1
    await nobody_is_left(instances)


def nodes(report: Report) -> set[str]:
    """Names of those that work: a node is called as its launch."""
    return {node.id.rpartition(".")[0] for node in report.nodes if node.state is NodeState.READY}


def instance_id(instance: Instance) -> str:
    """EC2's own."""
    return instance.handle.partition("/")[2]


async def nobody_is_left(instances: InstanceRunner) -> None:
    """All processes of all instances end with the run."""
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for machine in instances.machines.values() for pid in machine.pids()]:
        assert time.monotonic() < deadline, f"processes were left behind: {left}"
        await asyncio.sleep(0.1)
