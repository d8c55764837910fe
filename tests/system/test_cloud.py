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
from astraflow.contract.fleet.instances import Cause, Instance, InstanceState
from astraflow.contract.fleet.plans import PlanRequest
from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import NodeState, Report
from tests.fakes.ec2_instances import InstanceRunner, running_instances
from tests.fakes.ec2_server import CREDENTIALS, Ec2Server, serving_ec2
from tests.system.processes import PATIENCE_S, ROOT, RunningRun, assert_balanced, command, running
from tests.system.test_fleet import ALICE, ready, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

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
times = {{ sweep_s = 1.0, quarantine_s = 10.0, dataflow_timeout_s = 30.0 }}

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
    """Changes the pool to a new size."""
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
        launched = {instance.id: instance for instance in await fleet.instances()}
        assert set(launched) == nodes(await run.steps_more(2))
        machines = {instance.id: instances.machines[instance_id(instance)] for instance in launched.values()}
        for machine in machines.values():
            assert not [line for line in machine.command_lines() if "afj." in line]  # prefix of join tokens
            assert "ASTRAFLOW_TOKEN" not in (machine.directory / "user-data").read_text()

        await change(fleet, 1)
        (remaining_instance,) = await fleet.instances()
        (ended_instance,) = [
            instance for instance in await fleet.instances(with_gone=True) if instance.state is InstanceState.GONE
        ]
        assert ended_instance.draining_at is not None
        # The machine ended with its node, before the fleet service had to terminate it.
        assert ended_instance.retiring_at is None or ended_instance.draining_at <= ended_instance.retiring_at
        assert '"event": "run_left"' in machines[ended_instance.id].log  # the node deregistered
        assert "ending the instance (status 0)" in machines[ended_instance.id].log
        report = await run.steps_more(2)
        assert nodes(report) == {remaining_instance.id}
        assert_balanced(report)

        instances.interrupt(instance_id(remaining_instance), in_s=12.0)
        await until(fleet, lambda status: not ready(1)(status))
        # Its replacement; the sizer may have ordered one more while no node was ready.
        await until(fleet, lambda status: set(status.pools[0].nodes) == {InstanceState.READY})
        assert remaining_instance.id not in {instance.id for instance in await fleet.instances()}
        # The node gets the notice from the machine and reports it: the report may arrive after the end itself.
        await until(fleet, lambda status: status.pools[0].losses == {Cause.PREEMPTED: 1})
        (preempted_instance,) = [
            instance for instance in await fleet.instances(with_gone=True) if instance.id == remaining_instance.id
        ]
        assert preempted_instance.cause is Cause.PREEMPTED
        assert "preemption_notice" in machines[remaining_instance.id].log
        assert_balanced(await run.steps_more(2))
    await no_process_is_left(instances)


async def test_the_join_token_of_a_node_cannot_be_used_again(
    ec2: Ec2Server, instances: InstanceRunner, tmp_path: Path
) -> None:
    """The join token in the user data of a working instance is used up, so a reader of the user data cannot join."""
    async with cloud_run(ec2, tmp_path) as (run, fleet):
        await until(fleet, ready(1))
        (machine,) = instances.machines.values()
        (secret,) = [word for word in (machine.directory / "user-data").read_text().split() if word.startswith("afj.")]
        variables = {**os.environ, "ASTRAFLOW_TOKEN": secret}
        join_command = [*command("join", run.facts()["dataflow"], "--name", "thief")]
        thief = subprocess.run(
            join_command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        assert thief.returncode != 0
        assert "used" in thief.stdout + thief.stderr
        assert len(nodes(await run.report())) == 1
    await no_process_is_left(instances)


def nodes(report: Report) -> set[str]:
    """Returns the names of the ready nodes: a node has the name of its launch."""
    return {node.id.rpartition(".")[0] for node in report.nodes if node.state is NodeState.READY}


def instance_id(instance: Instance) -> str:
    """Returns EC2's instance id."""
    return instance.handle.partition("/")[2]


async def no_process_is_left(instances: InstanceRunner) -> None:
    """Asserts that all processes of all instances end with the run."""
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for machine in instances.machines.values() for pid in machine.pids()]:
        assert time.monotonic() < deadline, f"processes were left behind: {left}"
        await asyncio.sleep(0.1)
