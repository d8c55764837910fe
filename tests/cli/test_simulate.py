"""`astraflow simulate` on the command line."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.cli.simulation import read_scenario, recorded_spec, replay_plot
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.recommendations import WhatIfAnswer
from tests import make
from tests.errors import raises_code

SHORT = ("--set", "hours=0.5", "--seeds", "1")


def typed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_without_a_scenario_the_names_are_listed() -> None:
    assert "spot-drought" in typed()


def test_a_scenario_prints_a_table_of_policies_and_writes_a_plot(tmp_path: Path) -> None:
    table = typed("step", *SHORT, "--plot", str(tmp_path / "nodes.svg"))
    assert [line.split()[0] for line in table.splitlines()[-3:]] == ["fixed", "plain", "sizer"]
    root = ElementTree.fromstring((tmp_path / "nodes.svg").read_text())  # noqa: S314 (written by this test)
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3


def test_json_output_has_totals_and_the_time_series() -> None:
    shown = json.loads(typed("steady", *SHORT, "--json"))
    assert shown["policies"]["fixed"]["node_hours"] == pytest.approx(11.0)
    assert len(shown["course"]["ticks"]) == 61


def test_a_scenario_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('hours = 1.0\n[pools.gpu]\nnodes = 4\n[[events]]\nat_h = 0.5\nkind = "loss"\nshare = 0.5\n')
    scenario = read_scenario(str(file), ["pools.gpu.bounds.max_nodes=6"])
    assert (scenario.pools["gpu"].bounds.max_nodes, scenario.events[0].kind) == (6, "loss")


def test_invalid_arguments_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "scaling.unknown_scenario", "'step'"):
        read_scenario("stp", [])
    with raises_code(InvalidInput, "config.invalid", "sizer.head_room", "'headroom'"):
        read_scenario("step", ["sizer.head_room=0.1"])
    with raises_code(InvalidInput, "config.invalid", "'gone'"):
        read_scenario("step", ["events=[{at_h=1.0, kind='loss', pool='gone'}]"])
    with raises_code(InvalidInput, "simulate.no_run_directory"):
        recorded_spec(tmp_path, [])
    with raises_code(InvalidInput, "simulate.unknown_setting", "'trainer'"):
        recorded_spec(tmp_path, ["trainer.step_s=3"])


def test_a_replay_plot_has_one_line() -> None:
    moved = make.pool_advice(target=5, at=1600.0)
    answer = WhatIfAnswer(
        recommendations=(make.pool_advice(target=2), moved),
        reports=10,
        began_at=1000.0,
        ended_at=4600.0,
        node_hours={"local": 4.0},
        recorded_node_hours={"local": 2.0},
        dollars=0.0,
        recorded_dollars=0.0,
        wait=0.0,
        recorded_wait=0.1,
    )
    assert replay_plot(answer).count("<polyline") == 1
