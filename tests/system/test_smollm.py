"""A real language model learns on two cores: `recipes/smollm`, as `make demo-llm` runs it."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.system.processes import ROOT, command

pytestmark = pytest.mark.long


@pytest.mark.timeout(1500)
def test_a_real_language_model_is_fetched_and_learns_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is shorter than the demo, so that it need not reach the stop condition."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    fetched = subprocess.run(command("fetch", "smollm2"), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert fetched.returncode == 0, fetched.stderr
    file = tmp_path / "summary.json"
    options = (
        "--headless",
        "--no-web",
        "--conversations",
        "2",
        "--json",
        str(file),
        "--run-dir",
        str(tmp_path / "run"),
    )
    limits = ("--steps", "40", "--limit-s", "1100")

    run = subprocess.run(
        command("run", "smollm/lora", *options, *limits), cwd=ROOT, capture_output=True, text=True, timeout=1150
    )

    summary = json.loads(file.read_text())
    assert (summary["balanced"], summary["failed"], summary["restarts"]) == (True, False, 0), run.stdout
    assert summary["reward_last"] > summary["reward_first"] + 0.2
    assert summary["logprob_mismatch_max"] < 1e-3  # nats
    assert run.stdout.count("assistant") == 4  # two conversations of the first step, and two of the last


def test_a_recipe_without_its_model_says_which_command_fetches_it() -> None:
    run = subprocess.run(command("run", "smollm", "--headless"), cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert run.returncode != 0
    assert "model.not_fetched" in run.stderr
    assert "astraflow fetch smollm2" in run.stderr
