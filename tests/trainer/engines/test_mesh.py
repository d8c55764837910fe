"""Every group of the ranks waits for another rank as long as the default process group, on real processes by gloo."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from astraflow.trainer.engines.mesh import RankMesh
from tests.fakes.forking import ForkingProgram

CPU = torch.device("cpu")
RANKS, TIMEOUT_S = 4, 123.0


def write_timeouts(rank: int, rendezvous: str) -> None:
    """Joins a mesh with two replicas and two sequence ranks; writes members and timeout of this rank's groups."""
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS, timeout=timeout)
    mesh = RankMesh.create(CPU, replicas=2, sequence_ranks=2)
    assert mesh.sequence is not None
    groups = {
        "replicas": mesh.shards["replicas"].get_group(),
        "shards": mesh.shards["shards"].get_group(),
        "sequence": mesh.sequence.group,
        "data": mesh.data,
    }
    facts = {}
    for name, group in groups.items():
        assert group is not None
        total = torch.tensor([1 << rank])
        dist.all_reduce(total, group=group)
        facts[name] = [int(total), group._get_backend(CPU).options._timeout.total_seconds()]
    sys.stdout.write(json.dumps(facts))
    sys.stdout.flush()
    dist.barrier()  # a rank that ends closes its connections


def test_all_groups_have_the_timeout_of_the_default_group(tmp_path: Path, rank_python: ForkingProgram) -> None:
    program = "from tests.trainer.engines.test_mesh import *; write_timeouts({rank}, {rendezvous!r})"
    processes = [
        subprocess.Popen(
            [*rank_python.command, "-c", program.format(rank=rank, rendezvous=str(tmp_path / "rendezvous"))],
            stdout=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]

    members = {
        "replicas": (0b0101, 0b1010, 0b0101, 0b1010),
        "shards": (0b0011, 0b0011, 0b1100, 0b1100),
        "sequence": (0b0011, 0b0011, 0b1100, 0b1100),
        "data": (0b0101, 0b1010, 0b0101, 0b1010),
    }
    for rank, output in enumerate(outputs):
        assert json.loads(output) == {name: [ranks[rank], TIMEOUT_S] for name, ranks in members.items()}
