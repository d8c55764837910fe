"""A run with two real policies, one trained on two ranks, of which one is killed: real processes, mutual TLS."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.system.processes import ROOT, command

pytestmark = [pytest.mark.slow, pytest.mark.long]

STEPS = 6
PATIENCE_S = 120.0
RECIPE = """
name = "ranks"

[stop]
reward = 2.0
steps = 6

[policies.solver]
model = { kind = "tiny", hidden_size = 32, heads = 2, key_value_heads = 1, intermediate_size = 64 }
batch_groups = 4
max_staleness = 2
backend = { kind = "local", learning_rate = 1e-3 }

[policies.sorter]
model = { kind = "tiny", hidden_size = 48, heads = 2, key_value_heads = 1, intermediate_size = 64 }
algorithm = { advantages = [{ kind = "leave_one_out" }], loss = { kind = "cispo" } }
batch_groups = 2
max_staleness = 1
backend = { kind = "fsdp", ranks = 2, learning_rate = 1e-3 }

[flows.train]
dataset = { kind = "letters", operation = "reverse", length = 2 }
workflow = { kind = "single_turn", policy = "solver", max_new_tokens = 3 }
reward = { kind = "exact_match" }
group_size = 4

[flows.sort]
dataset = { kind = "letters", operation = "sort", length = 2 }
workflow = { kind = "single_turn", policy = "sorter", max_new_tokens = 3 }
reward = { kind = "exact_match" }
group_size = 4

[nodes]
count = 1
capacity = 16
engine = { kind = "local_torch" }
"""


def steps_of(log: Path) -> list[dict[str, object]]:
    """Returns the steps that a trainer logged, over all its restarts."""
    if not log.exists():
        return []
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return [event for event in events if event.get("event") == "step"]


def ranks_of(run: Path) -> list[int]:
    """Returns the process ids of the ranks that the trainers of a run have started, by the token of the run."""
    token = (run / "token").read_text().strip()
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if "trainer-rank" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("ASTRAFLOW_TOKEN") == token
    ]


@pytest.mark.flaky(reruns=1)  # two trainers, four ranks and two nodes share the machine; a restart takes its time
def test_two_trainers_of_several_ranks_learn_despite_a_killed_rank(tmp_path: Path) -> None:
    summary, directory, recipe = tmp_path / "summary.json", tmp_path / "run", tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    arguments = command("run", str(recipe), "--headless", "--no-web", "--tls", "--limit-s", "240")
    arguments += ["--run-dir", str(directory), "--json", str(summary)]
    log = directory / "logs" / "trainer-sorter.log"
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(steps_of(log)) < 2:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "out").read_text()
                time.sleep(0.05)
            (rank,) = ranks_of(directory)
            os.kill(rank, signal.SIGKILL)
            process.wait(timeout=240)
        finally:
            process.kill()
            process.wait()

    result = json.loads(summary.read_text())
    assert (result["failed"], result["balanced"], result["restarts"]) == (False, True, 1), result
    assert {policy["policy"] for policy in result["policies"]} == {"solver", "sorter"}
    assert all(policy["steps"] >= STEPS for policy in result["policies"])
    assert result["simulated"] == []
    assert result["logprob_mismatch_max"] < 1e-3
    assert "rank 1 was killed by signal 9" in log.read_text()
    batches = [step["batch"] for step in steps_of(log)]
    assert len(batches) == len(set(batches))
