"""Runs by name, and `astraflow runs clean` on folders below ASTRAFLOW_HOME."""

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.cli.page.ended_runs import find_ended_runs, remove
from astraflow.cli.run_directory import RunDirectory, find_run_folder, last_step
from astraflow.cli.run_endpoints import find_run
from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code
from tests.fakes.recorded_run import run_folder


@pytest.fixture
def runs(own_home: Path) -> Path:
    return own_home / "runs"


def stored(folder: Path, *, step: int | None, days: float = 0.0) -> Path:
    """Creates the folder of a run that ended `days` ago. step: of its newest checkpoint."""
    run_folder(folder, run=folder.name)
    (folder / "trainer-solver" / "checkpoints" / ".writing").mkdir(parents=True)
    if step is not None:
        (folder / "trainer-solver" / "checkpoints" / f"step-{step:08d}").mkdir()
    ended_at = time.time() - days * 86400
    for path in (*folder.iterdir(), folder):
        os.utime(path, (ended_at, ended_at))
    return folder


def clean(*options: str) -> dict[str, dict[str, object]]:
    """Runs `astraflow runs clean`; returns its rows by the name of the run."""
    done = CliRunner().invoke(app, ["runs", "clean", "--json", *options], catch_exceptions=False)
    return {row["name"]: row for row in json.loads(done.output)}


def test_a_run_is_found_by_folder_and_by_name(runs: Path, tmp_path: Path) -> None:
    stored(runs / "evening", step=1)
    stored(tmp_path / "mine", step=None)
    assert find_run_folder("evening").facts.run == "evening"
    assert find_run_folder(tmp_path / "mine").facts.run == "mine"
    with raises_code(InvalidInput, "run_folder.unknown", "'morning'", str(runs)):
        find_run_folder("morning")


@pytest.mark.parametrize(
    "command",
    [
        ["view", "morning"],
        ["track", "tensorboard", "--run-dir", "morning"],
        ["trajectories", "t", "--run-dir", "morning"],
    ],
)
def test_commands_for_ended_runs_look_for_a_run_of_this_name(
    command: list[str], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    unknown = CliRunner().invoke(app, command)
    assert "run_folder.unknown" in unknown.output + str(getattr(unknown.exception, "code", ""))
    stored(runs / "morning", step=1)
    known = CliRunner().invoke(app, command)
    assert known.exit_code != 0, "it has no archive"
    assert "run_folder" not in known.output + str(getattr(known.exception, "code", ""))


def test_an_active_run_is_called_by_its_name_and_an_ended_one_is_not(runs: Path) -> None:
    stored(runs / "morning", step=1)
    with raises_code(InvalidInput, "cli.not_an_address", "HOST:PORT"):
        find_run("morning", "token", None)
    with RunDirectory.opened(None, name="smoke", seed=0, recipe="{}") as active:
        active.update_facts(dataflow="127.0.0.1:4711")
        endpoint = find_run(active.facts.run, "", None)
        assert (endpoint.address, endpoint.token) == ("127.0.0.1:4711", active.token)


def test_the_last_step_is_the_newest_of_all_trainers(tmp_path: Path) -> None:
    assert last_step(stored(tmp_path / "run", step=None)) is None
    (tmp_path / "run" / "trainer-critic" / "checkpoints" / "step-00000012").mkdir(parents=True)
    (tmp_path / "run" / "trainer-solver" / "checkpoints" / "step-00000009").mkdir()
    assert last_step(tmp_path / "run") == 12


def test_ended_runs_are_listed_and_none_is_removed(runs: Path, tmp_path: Path) -> None:
    stored(runs / "trained", step=3, days=2)
    stored(runs / "failed", step=None)
    (runs / "elsewhere").symlink_to(stored(tmp_path / "mine", step=None))
    (runs / "gone").symlink_to(tmp_path / "nothing")
    (runs / "no-run").mkdir()
    with RunDirectory.opened(None, name="smoke", seed=0, recipe="{}"):
        rows = clean()
        assert list(rows) == ["trained", "failed"], "the oldest first, without active runs and links"
    assert (rows["trained"]["last_step"], rows["trained"]["age_days"]) == (3, 2.0)
    assert rows["failed"]["last_step"] is None
    assert [row["is_removable"] for row in rows.values()] == [False, True]
    assert {"trained", "failed", "elsewhere", "gone", "no-run"} <= {path.name for path in runs.iterdir()}


def test_runs_without_a_step_and_old_runs_are_removed(runs: Path, tmp_path: Path) -> None:
    for name, step, days in (("failed", None, 0), ("begun", 0, 0), ("old", 3, 40), ("recent", 3, 2)):
        stored(runs / name, step=step, days=days)
    (runs / "elsewhere").symlink_to(stored(tmp_path / "mine", step=None))
    (runs / "gone").symlink_to(tmp_path / "nothing")
    assert clean("--yes")["old"]["is_removed"] is False
    assert {path.name for path in runs.iterdir()} == {"old", "recent", "elsewhere"}
    assert clean("--older-than", "30", "--yes")["old"]["is_removed"] is True
    assert {path.name for path in runs.iterdir()} == {"recent", "elsewhere"}
    assert (tmp_path / "mine").exists()


def test_a_run_that_trains_no_policy_stays(runs: Path) -> None:
    folder = stored(runs / "judged", step=0)
    (folder / "recipe.json").write_text(json.dumps({"policies": {"judge": {"is_trained": False}}}))
    clean("--yes")
    assert folder.exists()


def test_a_run_that_became_active_is_not_removed(runs: Path) -> None:
    stored(runs / "failed", step=None)
    [run] = find_ended_runs()
    with (
        RunDirectory.opened(runs / "failed", name="smoke", seed=0, recipe="{}") as directory,
        raises_code(InvalidInput, "run_directory.active"),
    ):
        remove(run)
    assert directory.path.exists()


def test_the_table_has_the_total_of_the_removable_runs(runs: Path) -> None:
    stored(runs / "failed", step=None)
    listed = CliRunner().invoke(app, ["runs", "clean"]).output
    assert "can be removed: 1 of 1 ended runs" in listed
    assert "--yes" in listed
    assert "removed 1 of 1 ended runs" in CliRunner().invoke(app, ["runs", "clean", "--yes"]).output
