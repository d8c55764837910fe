"""Rank of a model under FSDP2 that trains a little and publishes each version; a test starts several.

Arguments: RANK RANKS RENDEZVOUS_FILE STORE_ADDRESS [OPTION...]

    spread      each rank acts as a separate host without shared memory, and prints a line of JSON per version
    key=FILE    the first rank signs with the key
    dies        the last rank kills itself while it sends its part of version 1
    elsewhere   without `spread`: the other ranks are on another host than the first
    replicas    every rank holds all weights
    summed      adds a tensor that cannot be published
"""

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Chunk, Dtype, SharedFile
from astraflow.trainer.backends.publishing.distributed_publisher import DistributedPublisher
from astraflow.trainer.backends.publishing.sharded_weights import ShardedWeights
from astraflow.weights import shared_memory
from astraflow.weights.codec.chunks import split
from astraflow.weights.publish import part_publisher
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.signing import SigningKey
from tests.weights.running import client_of

POLICY = PolicyId("solver")
VERSIONS = 3
CPU = torch.device("cpu")


class Small(nn.Module):
    """Model with tied weights, odd sizes, a tensor with fewer rows than ranks, and one that is not sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(37, 12)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.narrow = nn.Linear(12, 1)
        self.head = nn.Linear(12, 37, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        logits: Tensor = self.head(hidden) + self.narrow(hidden)
        return logits


def small() -> Small:
    """Returns the model with fixed initial weights."""
    torch.manual_seed(0)
    return Small()


@torch.no_grad()
def moved(parameters: dict[str, nn.Parameter]) -> None:
    """Applies a step without gradients that changes shards and whole tensors identically, bit for bit."""
    for parameter in parameters.values():
        values = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        values.mul_(1.003)


async def publish(rank: int, address: str, parameters: dict[str, nn.Parameter]) -> None:
    """Publishes every version from the first rank; the others take part."""
    weights = ShardedWeights(parameters, dtype=Dtype.BFLOAT16, device=CPU)
    if rank:
        for _ in range(VERSIONS):
            weights.snapshot(broadcast_file(None))
            moved(parameters)
        return
    async with client_of(address) as client, Publisher(client, POLICY) as publisher:
        for version in range(VERSIONS):
            draft = await publisher.begin_version(weights.published_shapes)
            broadcast_file(draft.buffer.file)
            weights.snapshot(draft)
            moved(parameters)
            await publisher.publish(Version(version), draft)


def broadcast_file(file: SharedFile | None) -> SharedFile | None:
    """Returns the first rank's file on every rank."""
    files = [file]
    dist.broadcast_object_list(files, src=0)
    return files[0]


async def publish_spread(rank: int, ranks: int, address: str, parameters: dict[str, nn.Parameter]) -> None:
    """Publishes every version from all ranks together."""
    setattr(shared_memory, "host_id", lambda: f"host {rank}")  # noqa: B010 (mypy sees a function that is cached)
    shared_memory.SHARED_FOLDER = Path("/nonexistent")
    keys = [SigningKey.read(Path(option[4:])) for option in sys.argv if option.startswith("key=")]
    async with (
        client_of(address) as client,
        DistributedPublisher(
            client,
            POLICY,
            parameters,
            dtype=Dtype.BFLOAT16,
            device=CPU,
            signing=keys[0] if keys and rank == 0 else None,
        ) as publisher,
    ):
        for version in range(VERSIONS):
            if "dies" in sys.argv and version == 1 and rank == ranks - 1:
                setattr(part_publisher, "split", killed_while_sending)  # noqa: B010 (not exported there)
            draft = publisher.snapshot()
            moved(parameters)
            await publisher.publish(Version(version), draft, metadata={"step": str(version)} if rank == 0 else None)
            stats = await publisher.wait()
            assert stats is not None
            sys.stdout.write(json.dumps({**asdict(stats), "kind": stats.kind.value if stats.kind else None}) + "\n")


def killed_while_sending(data: bytes | memoryview) -> Iterator[Chunk]:
    """Yields some chunks, waits until they have left this process, and kills it."""
    yield from islice(split(data, chunk_bytes=len(data) // 3), 2)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


def run() -> None:
    """Runs the rank, from joining the others to its last version."""
    rank, ranks, rendezvous, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    if "elsewhere" in sys.argv and rank:
        setattr(shared_memory, "host_id", lambda: "another host")  # noqa: B010 (mypy sees a function that is cached)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    model = small()
    names, sizes = (("replica", "shard"), (ranks, 1)) if "replicas" in sys.argv else (("shard",), (ranks,))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    fully_shard(model.layers[0], mesh=mesh)
    fully_shard(model.layers[1], mesh=mesh, shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1))
    fully_shard(model.layers[2], mesh=mesh, shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1))
    fully_shard(model, mesh=mesh, ignored_params={model.narrow.bias})
    parameters = dict(model.named_parameters())
    if "summed" in sys.argv:
        summed = DTensor.from_local(torch.zeros(3), mesh, [Partial()] * mesh.ndim)
        parameters["summed"] = nn.Parameter(summed)
    if "spread" in sys.argv:
        asyncio.run(publish_spread(rank, ranks, address, parameters))
    else:
        asyncio.run(publish(rank, address, parameters))
    dist.barrier()


def main() -> None:
    """Runs the rank and exits; `tests.fakes.forking` ends the process without cleanup, because gloo's threads sometimes
    abort a process that tears them down."""
    code = 0
    try:
        run()
    except Exception as problem:
        traceback.print_exc()
        sys.stderr.write(f"[{getattr(problem, 'code', '')}]\n")
        code = 1
    sys.stderr.flush()
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
