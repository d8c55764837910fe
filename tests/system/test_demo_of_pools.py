"""The demo of pools: the rule sizes three pools, one of them loses nodes, and the run continues."""

from pathlib import Path

import pytest

from astraflow.client.fleet_plane import connect_fleet
from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.ids import PoolId
from tests.system.processes import assert_balanced, running
from tests.system.test_fleet import ALICE, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

POOLS = {"us-east", "eu-west", "ap-south"}


def size_of(status: FleetStatus) -> int:
    """Returns the target of the pool that loses nodes."""
    return next(pool.target for pool in status.pools if pool.spec.id == "us-east")


def ready(status: FleetStatus) -> int:
    """Returns how many of its nodes are ready."""
    pool = next(pool for pool in status.pools if pool.spec.id == "us-east")
    return dict(pool.nodes).get(InstanceState.READY, 0)


async def test_lost_nodes_of_a_pool_are_replaced_during_training(tmp_path: Path) -> None:
    async with running("smoke/regions", tmp_path / "run", "--fleet", "--no-web", gone_within_s=60.0) as run:
        report = await run.until(
            lambda report: (
                {pool.id for pool in report.pools if pool.ready} == POOLS and report.streams[0].training.steps > 2
            )
        )
        assert {node.facts.region for node in report.nodes} == POOLS, "they are named after regions"
        assert report.simulated, "simulated regions are labelled"

        async with connect_fleet(run.facts()["fleet"], run.token()) as fleet:
            await until(fleet, lambda status: ready(status) >= 3)
            before = (await run.report()).streams[0].training.steps
            done = await fleet.inject_fault(PoolId("us-east"), share=0.3, actor=ALICE, key="drill", reason="a drill")
            assert done.lost
            await until(fleet, lambda status: ready(status) < size_of(status))
            await until(fleet, lambda status: ready(status) >= size_of(status))
            assert not {instance.id for instance in await fleet.instances()} & set(done.lost), (
                "lost nodes were replaced"
            )
        report = await run.until(lambda report: report.streams[0].training.steps > before + 5)
        assert_balanced(report)
