"""Configuration of the fleet service from a recipe's `fleet` table."""

from pathlib import Path

import pytest

from astraflow.cli.fleet.config import DATAFLOW_TIMEOUT_S, fleet_values
from astraflow.recipe.loading import Check, load_recipe

LOOPBACK = 'fleet.providers.here = { kind = "static_ssh", hosts = { one = { address = "127.0.0.1" } } }\n'
CLOUD = 'fleet.providers.aws = { kind = "ec2" }\n'


@pytest.mark.parametrize(("providers", "is_local"), [("", True), (LOOPBACK, True), (CLOUD, False)])
def test_only_pools_of_this_machine_get_its_short_timeouts(tmp_path: Path, providers: str, is_local: bool) -> None:
    (tmp_path / "own.toml").write_text(f'extends = "smoke"\nname = "own"\n{providers}')
    values = fleet_values(load_recipe(str(tmp_path / "own.toml"), [], check=Check.NONE), run="r")
    times = {"dataflow_timeout_s": DATAFLOW_TIMEOUT_S, "sweep_s": 5.0, "quarantine_s": 10.0}
    assert values.get("times") == (times if is_local else None)
