"""A sweep runs every combination once, continues what is missing, and compares seeds."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow.cli.running.local_run import STOPPED
from astraflow.cli.running.sweeps import Sweep, SweptRun, sweep_table
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import runs_folder
from astraflow.runtime.folders.run_metadata import read_metadata
from tests.errors import raises_code

STEPS = "stop.steps=5,10"

PROGRAM = """#!{python}
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
with (folder / "starts").open("a") as starts:
    starts.write("x")
seed = int(next(word for word in sys.argv if word.startswith("seed=")).removeprefix("seed="))
policies = [{{"loss_last": None}}]
summary = dict(failed=False, reason="done", learned=seed > 0, steps=10 + seed, seconds_training=2.0, policies=policies)
(folder / "summary.json").write_text(json.dumps(dict(summary, reward_last=0.5 + seed / 10)))
"""
"""Stands for the command of a run: ends at once with a summary."""

WAITING = """#!{python}
import pathlib, signal, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
def stopped(*_):
    (folder / "stopped").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
(folder / "starts").write_text("x")
signal.pause()
"""
"""Stands for the command of a run that ends when it is asked to."""


@pytest.fixture
def ended_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr("astraflow.cli.running.sweeps.sys.executable", str(program))


def swept(*varied: str, seeds: int = 2, name: str = "") -> Sweep:
    return Sweep("smoke", varied, (), seeds=seeds, name=name)


def run(sweep: Sweep, *, parallel: int = 2) -> None:
    asyncio.run(sweep.run(asyncio.Event(), parallel=parallel, limit_s=None))


def summary_of(run: SweptRun, **values: Any) -> None:
    run.folder.path.mkdir(parents=True, exist_ok=True)
    (run.folder.path / "summary.json").write_text(json.dumps({"failed": False, "reason": "done", **values}))


def starts(run: SweptRun) -> int:
    file = run.folder.path / "starts"
    return len(file.read_text()) if file.exists() else 0


def test_all_combinations_of_values_and_seeds_are_runs_of_one_group(ended_at_once: None) -> None:
    sweep = swept(STEPS)
    run(sweep)
    assert [(member.values["stop.steps"], member.seed) for member in sweep.runs] == [
        ("5", 0), ("5", 1), ("10", 0), ("10", 1),
    ]  # fmt: skip
    metadata = read_metadata(runs_folder() / sweep.runs[1].name)
    assert (metadata.group, metadata.tags) == (sweep.name, ("seed=1", "steps=5"))
    assert [starts(member) for member in sweep.runs] == [1, 1, 1, 1]


def test_the_same_call_runs_only_what_has_not_ended(ended_at_once: None) -> None:
    sweep = swept(STEPS)
    summary_of(sweep.runs[0])
    summary_of(sweep.runs[1], reason=STOPPED)
    summary_of(sweep.runs[2], failed=True)
    run(swept(STEPS))
    assert [starts(member) for member in sweep.runs] == [0, 1, 1, 1]


def test_ctrl_c_stops_the_run_at_work_and_starts_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(WAITING.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr("astraflow.cli.running.sweeps.sys.executable", str(program))
    sweep, stop = swept(STEPS), asyncio.Event()

    async def interrupted() -> None:
        running = asyncio.create_task(sweep.run(stop, parallel=1, limit_s=None))
        async with asyncio.timeout(30):
            while not starts(sweep.runs[0]):  # noqa: ASYNC110 (nothing tells that another process wrote)
                await asyncio.sleep(0.01)
            stop.set()
            await running

    asyncio.run(interrupted())
    assert [starts(member) for member in sweep.runs] == [1, 0, 0, 0]
    assert (sweep.runs[0].folder.path / "stopped").exists()


def test_rows_have_the_median_and_the_range_over_seeds(ended_at_once: None) -> None:
    sweep = swept(seeds=3)
    run(sweep)
    (row,) = sweep.rows()
    assert (row["ended"], row["reached"], row["final_of"]) == (3, 2, "reward")
    assert row["steps"] == {"median": 11, "min": 10, "max": 12}
    assert row["final"] == {"median": pytest.approx(0.6), "min": 0.5, "max": pytest.approx(0.7)}
    sweep_table(sweep.rows())


def test_runs_that_are_missing_have_no_figures() -> None:
    (row,) = swept(seeds=1).rows()
    assert (row["ended"], row["steps"], row["final"]) == (0, None, None)
    assert row["runs"][0]["has_ended"] is False


def test_a_name_stands_for_one_plan(ended_at_once: None) -> None:
    run(swept(seeds=1, name="mine"))
    with raises_code(InvalidInput, "sweep.other_plan"):
        try:
            run(swept(seeds=2, name="mine"))
        except* InvalidInput as problems:
            raise problems.exceptions[0] from None


@pytest.mark.parametrize("axis", ["stop.steps", "stop.steps=", "=1,2", "stop.steps=1,1"])
def test_a_setting_without_different_values_is_refused(axis: str) -> None:
    with raises_code(InvalidInput, "sweep.invalid_axis"):
        swept(axis)


def test_every_combination_is_checked_before_the_first_run() -> None:
    with raises_code(InvalidInput, "config.invalid", "stop.steps"):
        swept("stop.steps=5,-1")
    with raises_code(InvalidInput, "sweep.too_many_runs"):
        swept("stop.steps=" + ",".join(map(str, range(1, 12))), seeds=100)


def test_values_of_several_parts_are_not_split() -> None:
    sweep = swept("policies.solver.sampler={kind='fresh', order='deadline'},{kind='fresh'}", seeds=1)
    assert len(sweep.runs) == 2
