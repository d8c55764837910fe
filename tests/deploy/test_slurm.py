"""The batch scripts on a real Slurm cluster of Debian's packages: a run and a node find each other and learn."""

import json
import sys
import time
from pathlib import Path

import pytest

from astraflow.cli.ports import free_ports, is_free
from tests.fakes.slurm_cluster import PATIENCE_S, SlurmCluster, slurm_cluster

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.needs("slurm", "root"), pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
WITHOUT_GPUS = "--gpus-per-node=0"
STEPS_BEFORE = 5
"""Steps before the run is queued again."""


def steps(directory: Path) -> list[int]:
    """Returns the steps that the trainer logged, over all its starts."""
    log = directory / "logs" / "trainer-solver.log"
    lines = log.read_text().splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return [event["step"] for event in events if event.get("event") == "step"]


def until_steps(directory: Path, count: int, *, output: Path) -> None:
    """Waits until the trainer logged so many steps."""
    last = time.monotonic() + PATIENCE_S
    while len(steps(directory)) < count:
        assert time.monotonic() < last, output.read_text()
        time.sleep(0.3)


def submitted(cluster: SlurmCluster, output: Path, *words: str) -> str:
    """Submits a script with the program of this environment; returns the id of the job."""
    first = next(port for port in free_ports(100) if all(is_free(port + offset) for offset in range(4)))
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{cluster.environment['PATH']}",
        "ASTRAFLOW_HOST": "127.0.0.1",
        "ASTRAFLOW_PORTS": str(first),
    }
    return cluster.call("sbatch", "--parsable", f"--output={output}", WITHOUT_GPUS, *words, **variables)


def test_a_run_and_a_node_find_each_other_and_continue_after_the_time_limit(tmp_path: Path) -> None:
    directory, run_output, node_output = tmp_path / "run", tmp_path / "run.out", tmp_path / "node.out"
    with slurm_cluster(tmp_path / "cluster") as cluster:
        options = ("--tls", "--no-web", "--set=dataflow.lease_s=30")  # a busy machine answers late
        run = submitted(cluster, run_output, str(SCRIPTS / "run.sh"), "smoke", str(directory), *options)
        after_run = ("--array=0", f"--dependency=after:{run}")
        node = submitted(cluster, node_output, *after_run, str(SCRIPTS / "node.sh"), str(directory))
        until_steps(directory, STEPS_BEFORE, output=run_output)
        cluster.call("scancel", "--batch", "--signal=USR1", run)  # as Slurm does before the time limit
        cluster.until_state(run, "PENDING")
        assert cluster.state(f"{node}_0") == "RUNNING"
        cluster.until_state(run, "RUNNING")
        assert cluster.until_state(run, "COMPLETED", "FAILED") == "COMPLETED", run_output.read_text()
        assert cluster.until_state(f"{node}_0", "COMPLETED", "FAILED") == "COMPLETED", node_output.read_text()
    learned = steps(directory)
    assert learned == list(range(learned[0], learned[0] + len(learned)))  # no step is lost or repeated
    assert len(learned) > STEPS_BEFORE
    assert not (directory / "join" / "address").exists()
