"""One rank of a model under FSDP2 that trains a little and publishes each version; started twice by a test.

python -m tests.trainer.backends.sharding_ranks RANK RANKS RENDEZVOUS_FILE STORE_ADDRESS [elsewhere]
"""

import asyncio
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.trainer.backends.sharded import ShardedWeights
from astraflow.weights import shared
from astraflow.weights.publisher import Publisher
from tests.weights.running import client_of

POLICY = PolicyId("solver")
VERSIONS = 3
CPU = torch.device("cpu")


class Small(nn.Module):
    """Tied weights, odd sizes, a tensor with fewer rows than ranks, and one that is not sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(37, 12)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
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
    """Always the same."""
    torch.manual_seed(0)
    return Small()


@torch.no_grad()
def moved(parameters: dict[str, nn.Parameter]) -> None:
    """A step that needs no gradients, so that shards and whole tensors move alike, bit for bit."""
    for parameter in parameters.values():
        values = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        values.mul_(1.003)


async def publish(rank: int, address: str, parameters: dict[str, nn.Parameter]) -> None:
    """Every version, by the first rank; the others take part."""
    weights = ShardedWeights(parameters, dtype=Dtype.BFLOAT16, device=CPU)
    if rank:
        for _ in range(VERSIONS):
            weights.snapshot(None)
            moved(parameters)
        return
    async with client_of(address) as client, Publisher(client, POLICY) as publisher:
        for version in range(VERSIONS):
            draft = await publisher.draft(weights.published)
            weights.snapshot(draft)
            moved(parameters)
            await publisher.publish(Version(version), draft)


def run() -> None:
    """The rank, from joining the others to its last version."""
    rank, ranks, rendezvous, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    if "elsewhere" in sys.argv and rank:
        setattr(shared, "host_id", lambda: "another host")  # noqa: B010 (mypy sees a function that is cached)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    model = small()
    names, sizes = (("replica", "shard"), (ranks, 1)) if "replicas" in sys.argv else (("shard",), (ranks,))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    fully_shard(model.layers[0], mesh=mesh)
    fully_shard(model.layers[1], mesh=mesh, shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1))
    fully_shard(model, mesh=mesh, ignored_params={model.narrow.bias})
    parameters = dict(model.named_parameters())
    if "summed" in sys.argv:
        summed = DTensor.from_local(torch.zeros(3), mesh, [Partial()] * mesh.ndim)
        parameters["summed"] = nn.Parameter(summed)
    asyncio.run(publish(rank, address, parameters))
    dist.barrier()


def main() -> None:
    """End at once: gloo's threads now and then abort a process that tears them down."""
    code = 0
    try:
        run()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
