"""A run on local spot machines: they are preempted with notice, the ledger records it, and others replace them."""

from pathlib import Path

import pytest

from astraflow.contract.fleet.instances import Cause, InstanceState
from astraflow.contract.fleet.pools import FleetStatus
from tests.system.processes import ROOT, assert_balanced, running
from tests.system.test_fleet import fleet_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(480)]

CHANCE_S = 300.0
"""Four machines live a minute on average: the chance that none was ready and preempted by then is 1 in millions."""
TERMINATING = (InstanceState.DRAINING, InstanceState.RETIRING)

RECIPE = """
extends = "{smoke}"
name = "smoke"

[stop]
reward = 2.0
steps = 1000000

[policies.solver.backend]
step_s = 0.5

[dataflow.pools.spot]
mode = "on"
min_nodes = 4
max_nodes = 4

[fleet.times]
sweep_s = 1.0

[fleet.providers.here]
kind = "local_process"
spot_mean_life_s = 60.0
notice_s = 10.0

[fleet.pools.spot]
provider = "here"
mode = "on"
nodes = 4
min_nodes = 4
max_nodes = 4
is_spot = true
drain_s = 8.0
"""


@pytest.mark.flaky(reruns=1)  # machines live for random times: within the time of the test none may be taken away
@pytest.mark.long  # test_hand_back has one spot node
async def test_preempted_machines_are_recorded_and_replaced(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(smoke=ROOT / "recipes/smoke/recipe.toml"))
    async with (
        running(str(recipe), tmp_path / "run", "--fleet", "--no-web", gone_within_s=20.0) as run,
        fleet_of(run) as fleet,
    ):
        await until(fleet, has_preempted_instance, patience_s=CHANCE_S)
        preempted_instances = [
            instance
            for instance in await fleet.instances(with_gone=True)
            if instance.cause is Cause.PREEMPTED and instance.ready_at
        ]
        assert preempted_instances
        assert all(instance.state in (*TERMINATING, InstanceState.GONE) for instance in preempted_instances)
        await until(fleet, lambda status: status.pools[0].nodes.get(InstanceState.READY, 0) >= 3)
        assert_balanced(await run.steps_more(2))
        after = {instance.id: instance.cause for instance in await fleet.instances(with_gone=True)}
        assert {after[instance.id] for instance in preempted_instances} == {Cause.PREEMPTED}


def has_preempted_instance(status: FleetStatus) -> bool:
    """Returns whether a ready node is leaving or has left because its machine is preempted."""
    return status.pools[0].losses.get(Cause.PREEMPTED, 0) > 0
