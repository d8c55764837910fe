"""A run on spot machines of this machine: they are taken away with notice, the ledger says so, and others come."""

from pathlib import Path

import pytest

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import FleetStatus, InstanceState
from tests.system.processes import ROOT, assert_balanced, running
from tests.system.test_fleet import fleet_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(480)]

CHANCE_S = 300.0
"""Four machines live a minute on average: that none of them has been at work and was taken by then is 1 in millions."""
LEAVING = (InstanceState.DRAINING, InstanceState.RETIRING)

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


@pytest.mark.retry_once("machines live for random times: within the time of the test none may be taken away")
async def test_machines_that_are_taken_away_with_notice_are_losses_and_come_back(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(smoke=ROOT / "recipes/smoke/recipe.toml"))
    async with (
        running(str(recipe), tmp_path / "run", "--fleet", "--no-web", gone_within_s=20.0) as run,
        fleet_of(run) as fleet,
    ):
        await until(fleet, has_lost_one, patience_s=CHANCE_S)
        taken = [one for one in await fleet.instances(with_gone=True) if one.cause is Cause.TAKEN and one.ready_at]
        assert taken
        assert all(one.state in (*LEAVING, InstanceState.GONE) for one in taken)
        await until(fleet, lambda status: status.pools[0].nodes.get(InstanceState.READY, 0) >= 3)
        assert_balanced(await run.steps_more(2))
        after = {one.id: one.cause for one in await fleet.instances(with_gone=True)}
        assert {after[one.id] for one in taken} == {Cause.TAKEN}


def has_lost_one(status: FleetStatus) -> bool:
    """Whether a node that worked goes or went because its machine is taken away."""
    return status.pools[0].losses.get(Cause.TAKEN, 0) > 0
