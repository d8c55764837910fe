"""Estimate of an engine's memory per GPU, from the model's shape and the engine's spec. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.models.shapes import ModelShape

SERVERS = ("sglang", "vllm")
"""Engines that start servers."""
MAX_RANK = 64
"""Largest rank of adapters that servers serve unmerged."""
WORKING_BYTES = 2 << 30
"""Activations, graphs and buffers of a server within its share of a GPU."""
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FP8_BYTES = 1
_DEFAULT_SHARE = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """Bytes on each GPU of a server."""

    weights: int
    cache: int
    """Room for keys and values; 0 or less: the weights do not leave any."""
    cached_tokens: int
    """Tokens that the caches of the GPUs of one server hold, in sequences of the longest length: recurrent states take
    room for each sequence, whatever its length."""
    total: int
    """Share of the GPU that the server takes."""


def gpus_per_server(engine: Mapping[str, Any]) -> int:
    return int(engine.get("tensor_parallel", 1)) * int(engine.get("pipeline_parallel", 1))


def server_gpus(engine: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Returns the GPUs of each server of a node, by number; GPUs that are named by an identifier are left out."""
    size = gpus_per_server(engine)
    if devices := engine.get("devices"):
        return [tuple(int(part) for part in str(names).split(",") if part.strip().isdecimal()) for names in devices]
    return [tuple(range(number * size, (number + 1) * size)) for number in range(int(engine.get("servers", 1)))]


def server_memory(shape: ModelShape, engine: Mapping[str, Any], *, gpu_bytes: int) -> ServerMemory:
    """Returns the memory of each GPU of a server, which takes its share at once."""
    size = gpus_per_server(engine)
    is_fp8 = engine.get("weights") == "fp8"
    weights = (
        (_FP8_BYTES if is_fp8 else _DTYPE_BYTES.get(str(engine.get("dtype", "auto")), 2)) * shape.parameters // size
    )
    total = int(float(engine.get("memory_share", _DEFAULT_SHARE)) * gpu_bytes)
    cache = total - weights - WORKING_BYTES
    # Each GPU has at least one head of keys and values.
    parts = min(int(engine.get("tensor_parallel", 1)), shape.kv_heads) * int(engine.get("pipeline_parallel", 1))
    context = int(engine.get("context_tokens", 0)) or shape.context
    per_sequence = 2 * shape.cache_elements * context // parts + shape.state_bytes // size
    cached_tokens = max(0, cache) * context // per_sequence
    return ServerMemory(weights=weights, cache=cache, cached_tokens=cached_tokens, total=total)
