"""The benchmark works: its modes behave as defined, its figures add up. No test asserts a speed."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from astraflow.recipe.config import dataflow_config, trainer_config
from benchmarks.asynchronous.__main__ import plot, sensitivity_table, table
from benchmarks.asynchronous.experiment import ASYNCHRONOUS, COLOCATED, MODES, SYNCHRONOUS, Mode, Setting, recipe
from benchmarks.asynchronous.measurement import Outcome, measure

TINY = Setting(batch_groups=2, group_size=2, episodes_at_once=8, faster=2000.0, tokens_in_one=64.0)


def outcome(mode: str, *, seconds: float) -> Outcome:
    return Outcome(
        mode=mode,
        label=f"{mode} mode",
        sigma=1.0,
        iterations_s=(seconds, seconds, 10 * seconds),
        ended_s=(0.0, seconds, 2 * seconds, 12 * seconds),
        wait={"solver": 0.25, "verifier": 0.5},
        train_use=0.5,
        rollout_use=0.25,
        idle=0.625,
        stale=0.0,
        staleness=1.0,
        load=0.0,
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_short_run_of_every_mode_has_consistent_figures(mode: Mode, tmp_path: Path) -> None:
    measurement = measure(TINY, mode, tmp_path / "run", warm_up=1, steps=3, seed=1)
    assert len(measurement.iterations_s) == 3
    assert measurement.ended_s[0] == 0.0
    assert list(measurement.ended_s) == sorted(measurement.ended_s)
    assert sum(measurement.iterations_s) == pytest.approx(measurement.ended_s[-1] - measurement.ended_s[0])
    assert all(
        0 <= share <= 1
        for share in (*measurement.wait.values(), measurement.train_use, measurement.rollout_use, measurement.idle)
    )
    assert measurement.staleness == 0 or mode is ASYNCHRONOUS


def test_the_modes_have_the_same_number_of_gpus() -> None:
    setting = Setting()
    runs = {mode.name: recipe(setting, mode, seed=0) for mode in MODES}
    token_s = {name: trainer_config(run, "solver").backend["token_s"] for name, run in runs.items()}
    assert token_s["asynchronous"] == token_s["synchronous"] == 2 * token_s["colocated"]
    assert {name: run.nodes.count for name, run in runs.items()} == {
        "asynchronous": 2,
        "synchronous": 2,
        "colocated": 4,
    }
    for mode in (SYNCHRONOUS, COLOCATED):
        config = dataflow_config(runs[mode.name], run="test")
        assert {stream.max_staleness for stream in config.streams.values()} == {0}
        assert config.flows["train"].when_full == "wait"
        assert runs[mode.name].nodes.capacity * runs[mode.name].nodes.count == setting.episodes


def test_time_compression_keeps_all_ratios() -> None:
    plain, packed = (recipe(setting, ASYNCHRONOUS, seed=0) for setting in (replace(TINY, faster=1.0), TINY))
    engines = plain.nodes.engine, packed.nodes.engine
    assert engines[0]["tokens_per_s"] * TINY.faster == pytest.approx(engines[1]["tokens_per_s"])
    assert engines[0]["half_speed_requests"] == engines[1]["half_speed_requests"]
    assert engines[0]["swap_s"] == pytest.approx(engines[1]["swap_s"] * TINY.faster)
    trained = [trainer_config(run, "verifier").backend["token_s"] for run in (plain, packed)]
    assert trained[0] == pytest.approx(trained[1] * TINY.faster)


def test_tables_and_plot_have_the_median_of_every_mode() -> None:
    outcomes = [outcome("asynchronous", seconds=50.0), outcome("synchronous", seconds=200.0)]
    lines = table(outcomes).splitlines()
    assert lines[3].split()[2:4] == ["200.0", "4.00"]
    assert "212.64" in lines[-1]
    assert "200.0 (4.00)" in sensitivity_table({"sigma 1.0": outcomes})
    drawn = ElementTree.fromstring(plot(outcomes))  # noqa: S314 (we drew it ourselves)
    assert {"asynchronous", "synchronous"} <= set(drawn.itertext())
