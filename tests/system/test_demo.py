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
    assert summary["logprob_gap_max"] < 1e-3  # the engines' logprobs are those of the trainer, in nats
    assert summary["weight_updates_delta"] + summary["weight_updates_shared"] > summary["weight_updates_full"]
