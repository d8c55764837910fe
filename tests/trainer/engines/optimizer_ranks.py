"""Weights, gradients and training of the optimizers' tests, and a rank that trains shards of the same weights."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from astraflow.trainer.engines.optimizers import MasterOptimizer, OptimizerOptions

EMBEDDING = "embed.weight"
SHAPES = {EMBEDDING: (31, 12), "up.weight": (40, 12), "down.weight": (12, 40), "norm.weight": (12,)}


def parameters() -> dict[str, nn.Parameter]:
    """Returns the initial weights."""
    random = torch.Generator().manual_seed(7)
    return {name: nn.Parameter(torch.randn(shape, generator=random)) for name, shape in SHAPES.items()}


def gradients_at(update: int) -> dict[str, Tensor]:
    """Returns the whole gradients of an update."""
    random = torch.Generator().manual_seed(100 + update)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def train(
    options: OptimizerOptions,
    *,
    updates: int,
    begin: int = 0,
    optimizer: MasterOptimizer | None = None,
    weights: dict[str, nn.Parameter] | None = None,
) -> MasterOptimizer:
    """Runs the updates; returns the optimizer, which publishes bfloat16."""
    optimizer = optimizer or MasterOptimizer(
        weights or parameters(), options, rounded_to=torch.bfloat16, not_matrices={EMBEDDING}
    )
    for update in range(begin, updates):
        for name, gradient in gradients_at(update).items():
            parameter = optimizer._parameters[name]
            parameter.grad = _as_sharded(gradient, parameter) if isinstance(parameter, DTensor) else gradient
        optimizer.accumulate()
        optimizer.update(is_loss_finite=True)
    return optimizer


def _as_sharded(gradient: Tensor, parameter: DTensor) -> DTensor:
    return distribute_tensor(gradient, parameter.device_mesh, parameter.placements)


def main(kind: str, rank: int, folder: Path) -> None:
    """Trains shards of the weights on one of two ranks, and saves the whole state."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    options = OptimizerOptions.parse(
        {"learning_rate": 1e-2, "weight_decay": 0.1, "grad_clip": 0.5, "optimizer": kind}, where=""
    )
    _train_and_save(options, mesh, folder / f"{rank}.safetensors")
    if kind == "adamw":
        _train_and_save(
            options.model_copy(update={"moments_dtype": "uint8"}), mesh, folder / f"{rank}-uint8.safetensors"
        )
    dist.destroy_process_group()


def _train_and_save(options: OptimizerOptions, mesh: DeviceMesh, file: Path) -> None:
    weights = {
        name: nn.Parameter(distribute_tensor(value.detach(), mesh, [Replicate() if value.ndim == 1 else Shard(0)]))
        for name, value in parameters().items()
    }
    weights["norm.weight"] = parameters()["norm.weight"]
    optimizer = train(options, updates=4, weights=weights)
    state = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in optimizer.state_tensors().items()
    }
    save_file(state, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
