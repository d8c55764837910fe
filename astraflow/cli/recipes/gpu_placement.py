"""Placement of a recipe's trainers and engines on the GPUs of one host, with the memory that each takes there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.models.shapes import ModelShape
from astraflow.raas.engines.memory import SERVERS, server_gpus, server_memory
from astraflow.recipe.config import PolicyConfig, Recipe, engine_of
from astraflow.trainer.memory import TrainerMemory, TrainingSetup, trainer_memory

RESERVED_BYTES = 2 << 30
"""Contexts of CUDA and NCCL, and fragments, of a trainer's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Part of a run on one GPU."""

    gpu: int
    part: str
    """Such as `trainer of 'solver', rank 0`."""
    size_bytes: int | None
    """None when the shape of the model is unknown."""
    remedy: str
    """How to make it smaller, or to move it."""


def needs_gpu(recipe: Recipe) -> bool:
    """Returns whether the recipe names GPUs, or serves a model other than the tiny one by a server.

    Other trainers and engines use a GPU if there is one, and otherwise the CPU.
    """
    backends = (policy.backend for policy in recipe.policies.values())
    return any(backend.get("gpus") or str(backend.get("device", "")).startswith("cuda") for backend in backends) or any(
        engine_of(recipe, name).get("kind") in SERVERS and policy.model.get("kind") == "huggingface"
        for name, policy in recipe.policies.items()
    )


def setup_of(policy: PolicyConfig, *, is_gpu: bool) -> TrainingSetup:
    """Returns what decides on the memory of a policy's trainer."""
    return TrainingSetup.of(policy.backend, policy.algorithm.model_dump(), is_gpu=is_gpu)


def trainer_use(policy: PolicyConfig, shape: ModelShape | None, *, longest_row: int) -> TrainerMemory | None:
    """Returns the memory of each GPU of a trainer; None for an unknown shape."""
    return None if shape is None else trainer_memory(shape, setup_of(policy, is_gpu=True), longest_row=longest_row)


def gpu_uses(
    recipe: Recipe, shapes: Mapping[str, ModelShape | None], rows: Mapping[str, int], *, gpu_bytes: int
) -> Iterator[GpuUse]:
    """Yields the parts of a run on each GPU of this host, trainers first; nothing for a recipe that needs none.

    rows: longest row of each policy. Tokens.
    """
    if not needs_gpu(recipe):
        return
    for name, policy in recipe.policies.items():
        memory = trainer_use(policy, shapes[name], longest_row=rows[name])
        size = None if memory is None else memory.peak + RESERVED_BYTES
        for rank, gpu in enumerate(trainer_gpus(policy.backend)):
            yield GpuUse(
                gpu=gpu,
                part=f"trainer of {name!r}, rank {rank}",
                size_bytes=size,
                remedy=_trainer_remedy(name, policy.backend),
            )
    for name in recipe.policies:
        yield from _server_uses(recipe, name, shapes[name], gpu_bytes)


def trainer_gpus(backend: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the GPUs of a trainer's ranks on this host."""
    device = str(backend.get("device", "auto"))
    if device == "cpu" or backend.get("kind") not in ("local", "fsdp", "titan"):
        return ()
    if backend.get("kind") == "local":
        return (int(device.partition(":")[2] or 0),)
    return tuple(backend.get("gpus") or range(int(backend.get("ranks", 2))))


def _trainer_remedy(name: str, backend: Mapping[str, Any]) -> str:
    where = f"policies.{name}.backend"
    remedies = [] if backend.get("recompute") == "full" or backend.get("kind") == "titan" else ["recompute = 'full'"]
    if backend.get("kind") in ("fsdp", "titan"):
        remedies += [] if backend.get("gradient_sync") == "each_pack" else ["gradient_sync = 'each_pack'"]
        remedies += ["more ranks"]
    remedies += [] if backend.get("moments_dtype") == "bfloat16" else ["moments_dtype = 'bfloat16'"]
    return f"set {', '.join(remedies)} or fewer micro_batch_tokens in {where}, or name other GPUs there"


def _server_uses(recipe: Recipe, name: str, shape: ModelShape | None, gpu_bytes: int) -> Iterator[GpuUse]:
    engine = engine_of(recipe, name)
    if engine.get("kind") not in SERVERS:
        return
    table = f"nodes.engines.{name}" if name in recipe.nodes.engines else "nodes.engine"
    memory = None if shape is None else server_memory(shape, engine, gpu_bytes=gpu_bytes)
    for node in range(recipe.nodes.count):
        suffix = f", node {node + 1}" if recipe.nodes.count > 1 else ""
        for number, gpus in enumerate(server_gpus(engine)):
            for gpu in gpus:
                yield GpuUse(
                    gpu=gpu,
                    part=f"{engine['kind']} for {name!r}, server {number}{suffix}",
                    size_bytes=None if memory is None else memory.total,
                    remedy=f"name other devices in {table}, or lower its memory_share",
                )
