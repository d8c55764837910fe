"""Runs of this machine: found by their folders, with a state, and stopped only when the process is theirs."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.client.local_runs import LocalRuns, LocalRunState, find_process, kept_steps, stop_run
from astraflow.contract.errors import Conflict
from astraflow.runtime.folders.launch_facts import LaunchFacts, write_launch
from astraflow.runtime.folders.run_folders import RunFolder, runs_folder
from astraflow.runtime.folders.run_metadata import METADATA, change_metadata
from tests.errors import raises_code
from tests.fakes.recorded_run import run_folder


def test_runs_are_found_by_folder_and_link_each_once(tmp_path: Path) -> None:
    run_folder(runs_folder() / "one", run="one")
    elsewhere = run_folder(tmp_path / "elsewhere", run="two")
    (runs_folder() / "two").symlink_to(elsewhere)
    (runs_folder() / "again").symlink_to(elsewhere)
    (runs_folder() / "empty").mkdir()

    runs = LocalRuns()

    assert sorted(run.name for run in runs.all()) == ["one", "two"]
    assert [run.name for run in LocalRuns([elsewhere]).all()] == ["two"]
    assert runs.find("empty") is None
    assert runs.find("../runs/one") is None


def test_new_removed_and_changed_folders_are_noticed() -> None:
    runs = LocalRuns()
    folder = run_folder(runs_folder() / "one", run="one")
    (run,) = runs.all()
    assert (run.recipe, run.metadata.title) == ("reverse", "")

    change_metadata(folder, title="Better")
    write_launch(folder, LaunchFacts(recipe="reverse/quick"))
    (run,) = runs.all()
    assert (run.recipe, run.metadata.title) == ("reverse/quick", "Better")

    (folder / METADATA).write_text("{")
    (run,) = runs.all()
    assert run.metadata.title == "", "damaged metadata hides no run"

    (folder / "run.json").rename(folder / "other")
    (folder / "launch.json").unlink()
    assert runs.all() == []


def test_a_run_is_running_while_its_lock_is_held_and_stopped_only_by_its_holder() -> None:
    folder = run_folder(runs_folder() / "one", run="one")
    runs = LocalRuns()
    with raises_code(Conflict, "launch.ended"):
        stop_run(runs.all()[0])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # by this process, whose id is not in the facts
        (run,) = runs.all()
        assert run.state is LocalRunState.RUNNING
        with raises_code(Conflict, "launch.process_not_found"):
            stop_run(run)
        holder = find_process(run.folder, {os.getpid()})
        assert holder is not None
        assert holder.pid == os.getpid()


def test_a_process_with_a_reused_id_is_not_the_runs() -> None:
    folder = run_folder(runs_folder() / "one", run="one")
    (run,) = LocalRuns().all()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert find_process(run.folder, {other.pid}) is None
        write_launch(folder, LaunchFacts(pid=other.pid, actor="ada"))
        assert [run.state for run in LocalRuns().all()] == [LocalRunState.ENDED]
    finally:
        other.communicate(b"\n")


@pytest.mark.parametrize("summary", ['{"reason": "learned"}', "{", None])
def test_an_ended_run_has_the_reason_of_its_end(summary: str | None) -> None:
    folder = run_folder(runs_folder() / "one", run="one")
    (folder / "logs").mkdir()
    (folder / "logs" / "launch.log").write_text("starting\nerror: cannot start: no port\nbye\n")
    if summary is not None:
        (folder / "summary.json").write_text(summary)

    (run,) = LocalRuns().all()

    assert run.final_message == ("learned" if summary == '{"reason": "learned"}' else "cannot start: no port")


def test_a_step_is_kept_if_each_trained_policy_has_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for policy, steps in {"solver": (0, 10, 20), "verifier": (0, 20), "judge": (0,)}.items():
        for step in steps:
            (folder.checkpoints(policy) / f"step-{step:08d}").mkdir(parents=True)
    (folder.checkpoints("solver") / "step-00000030.damaged").mkdir()

    assert kept_steps(folder, ("solver",)) == (20, 10, 0)
    assert kept_steps(folder, ("solver", "verifier")) == (20, 0)
    assert kept_steps(folder, ("judge",)) == (0,)
    assert kept_steps(folder, ("solver", "unknown")) == ()
    assert kept_steps(folder, ()) == ()
