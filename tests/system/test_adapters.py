"""A run that trains adapters on two ranks, whose trainer is killed: real processes, mutual TLS, a real node."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from astraflow.trainer.export import export_checkpoint
from tests.system.processes import ROOT, command
from tests.system.test_ranks import steps_of

pytestmark = pytest.mark.slow

STEPS = 5
PATIENCE_S = 120.0
RECIPE = """
name = "adapters"

[stop]
reward = 2.0
steps = 5

[policies.solver]
model = { kind = "tiny", hidden_size = 32, heads = 2, key_value_heads = 1, intermediate_size = 64 }
algorithm = { loss = { kind = "ppo", kl_coefficient = 0.01 } }
batch_groups = 4
max_staleness = 2
backend = { kind = "fsdp", ranks = 2, learning_rate = 1e-3, lora = { rank = 4 } }

[flows.train]
dataset = { kind = "letters", operation = "reverse", length = 2 }
workflow = { kind = "single_turn", policy = "solver", max_new_tokens = 3 }
reward = { kind = "exact_match" }
group_size = 4

[nodes]
count = 1
capacity = 16
engine = { kind = "local_torch" }
"""


def events_of(log: Path, event: str) -> list[dict[str, object]]:
    """Returns the events of a name in a log."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return [fields for fields in map(json.loads, lines) if fields.get("event") == event]


@pytest.mark.long
@pytest.mark.flaky(reruns=1)  # a trainer with two ranks and a node share the machine; a restart takes its time
def test_adapters_are_trained_on_a_base_that_is_published_once(tmp_path: Path) -> None:
    summary, directory, recipe = tmp_path / "summary.json", tmp_path / "run", tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    arguments = command("run", str(recipe), "--headless", "--no-web", "--tls", "--limit-s", "240")
    arguments += ["--run-dir", str(directory), "--json", str(summary)]
    log = directory / "logs" / "trainer-solver.log"
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(steps_of(log)) < 2:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "out").read_text()
                time.sleep(0.05)
            os.kill(json.loads((directory / "processes.json").read_text())["trainer-solver"], signal.SIGKILL)
            process.wait(timeout=240)
        finally:
            process.kill()
            process.wait()

    result = json.loads(summary.read_text())
    assert (result["failed"], result["balanced"], result["restarts"]) == (False, True, 1), result
    assert result["steps"] >= STEPS
    assert result["logprob_mismatch_max"] < 1e-3
    assert (len(events_of(log, "base_published")), len(events_of(log, "base_already_published"))) == (1, 1)
    published = events_of(directory / "logs" / "weights.log", "version_published")
    assert [event["version"] for event in published if event["policy"] == "solver.base"] == [0]
    largest = max(int(str(event["full_bytes"])) for event in published if event["policy"] == "solver")
    (base,) = (int(str(event["full_bytes"])) for event in published if event["policy"] == "solver.base")
    assert largest < base
    assert export_checkpoint(directory / "trainer-solver" / "checkpoints", tmp_path / "model").version >= STEPS
