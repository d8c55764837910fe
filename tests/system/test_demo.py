"""The demo of the README, `astraflow demo`: a real model, trained over the real planes, learns its task."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.system.processes import ROOT, command


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.timeout(600)
def test_the_demo_learns_to_reverse_four_letters(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    options = ("--headless", "--limit-s", "500", "--json", str(file), "--run-dir", str(tmp_path / "run"))
    demo = subprocess.run(
        command("demo", *options), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=560
    )
    summary = json.loads(file.read_text())

    assert demo.returncode == 0, demo.stdout
    assert (summary["learned"], summary["balanced"], summary["failed"], summary["restarts"]) == (True, True, False, 0)
    assert not summary["simulated"]
    assert summary["reward_first"] < 0.5
    # The step that was being written when the run had learned is acknowledged too, and may be a little lower.
    assert summary["reward_last"] >= 0.88
    assert summary["logprob_mismatch_max"] < 1e-3  # the engines' logprobs are those of the trainer, in nats
    assert summary["weight_updates_delta"] + summary["weight_updates_shared"] > summary["weight_updates_full"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real_processes
@pytest.mark.timeout(1800)
def test_the_demo_learns_with_two_ranks_whose_logprobs_are_those_of_the_engines(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    settings = (
        "policies.solver.backend={kind='fsdp', ranks=2, learning_rate=5e-4}",
        "policies.solver.algorithm.max_mismatch=1e-4",  # of k3 between trainer and engines; above it the run fails
        "policies.solver.algorithm.max_mismatch_steps=1",
    )
    arguments = [part for setting in settings for part in ("--set", setting)]
    options = ("--headless", "--no-web", "--limit-s", "1500", "--json", str(file), "--run-dir", str(tmp_path / "run"))
    run = subprocess.run(
        command("run", "reverse", *arguments, *options),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1700,
    )
    summary = json.loads(file.read_text())

    assert run.returncode == 0, run.stdout
    assert (summary["learned"], summary["balanced"], summary["failed"], summary["restarts"]) == (True, True, False, 0)
    assert summary["reward_last"] >= 0.88
