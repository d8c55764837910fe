"""Estimate of a trainer's memory per GPU, from the model's shape and the recipe. Imports no torch.

What a trainer holds between passes follows exactly from its options; what a pass adds is a bound. Measured on a CPU
(`tests/trainer/test_memory.py`) and on an H200 (`docs/benchmarks.md`). Weights and gradients of a block, of embedding
and head, are gathered on each rank. Logits that are kept while there is room, up to a 30th of the GPU, are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from astraflow.models.shapes import ModelShape
from astraflow.trainer.ranks.launch import DEFAULT_RANKS

FLOAT32 = 4
BFLOAT16 = 2
HEAD_BYTES = {False: 3 * (512 << 20), True: 2 << 30}
"""Buffers of the head's logits on a GPU, by whether it is compiled."""
_MOMENT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "uint8": 1 + 4 / 256}
"""Bytes of an element of a moment, with its share of the scales."""
DEFAULT_RANK = 16
"""Rank of adapters whose options do not set it."""
_DEFAULT_PACK_TOKENS = 16_384
_CHUNK = 64
"""Tokens of a chunk of a recurrence."""
_CHUNK_SCORES = 8
_RECURRENT_TENSORS = 8
"""Tensors of scores within chunks, and of inputs of the recurrence, that are kept for the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """Options of a backend and an algorithm that decide on memory."""

    ranks: int = 1
    shards: int = 1
    """Ranks over which weights, gradients and moments are divided."""
    sequence_ranks: int = 1
    compute_bytes: int = BFLOAT16
    """Bytes of an element in which the model computes."""
    moment_bytes: float = FLOAT32
    lora_rank: int = 0
    lora_targets: tuple[str, ...] | None = None
    syncs_each_pack: bool = False
    recompute: str = "none"
    is_compiled: bool = False
    micro_batch_tokens: int = _DEFAULT_PACK_TOKENS
    is_offloaded: bool = False
    has_ranks: bool = False
    """A backend with ranks (`fsdp`, `titan`), which divides and gathers, also with one rank."""
    needs_reference: bool = False
    has_critic: bool = False
    teachers: int = 0
    """Teachers that are loaded beside the policy, counted as if they had its size."""

    @classmethod
    def of(cls, backend: Mapping[str, Any], algorithm: Mapping[str, Any], *, is_gpu: bool) -> Self:
        """Reads the specs of a backend and an algorithm; the backend's defaults are those of its options."""
        has_ranks = backend.get("kind") in ("fsdp", "titan")
        ranks = int(backend.get("ranks", DEFAULT_RANKS)) if has_ranks else 1
        compute = backend.get("compute_dtype", "auto")
        is_half = compute == "bfloat16" or (compute == "auto" and is_gpu)
        lora = backend.get("lora")
        targets = (lora or {}).get("target_modules")
        loss, teachers = algorithm.get("loss", {}), algorithm.get("teachers", {}).values()
        return cls(
            ranks=ranks,
            shards=ranks // int(backend.get("replicas", 1)),
            sequence_ranks=int(backend.get("sequence_ranks", 1)),
            compute_bytes=BFLOAT16 if is_half else FLOAT32,
            moment_bytes=_MOMENT_BYTES.get(str(backend.get("moments_dtype")), FLOAT32),
            lora_rank=0 if lora is None else int(lora.get("rank", DEFAULT_RANK)),
            lora_targets=None if targets is None else tuple(targets),
            syncs_each_pack=backend.get("gradient_sync") == "each_pack",
            recompute=str(backend.get("recompute", "none")),
            is_compiled=bool(backend.get("compile_blocks", False)),
            micro_batch_tokens=int(backend.get("micro_batch_tokens", _DEFAULT_PACK_TOKENS)),
            is_offloaded=bool(backend.get("cpu_offload", False)),
            has_ranks=has_ranks,
            needs_reference=loss.get("kind") == "dpo"
            or float(loss.get("kl_coefficient", 0.0)) > 0
            or any(teacher.get("policy") == "initial" for teacher in teachers),
            has_critic=algorithm.get("critic") is not None,
            teachers=sum(teacher.get("model") is not None for teacher in teachers),
        )

    @property
    def data_ranks(self) -> int:
        """Ranks with different packs."""
        return self.ranks // self.sequence_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMemory:
    """Bytes on each GPU of a trainer."""

    held: Mapping[str, int]
    """Held all the time, by part."""
    activations: int
    """Kept for the backward pass of a pack."""
    transient: int
    """Gathered weights, their gradients, and logits, while a pass runs."""
    start: int
    """Needed at the end of a start with ranks: the shards of all weights, and the largest part of the model that is
    read and divided at once."""

    @property
    def peak(self) -> int:
        """Largest use."""
        return max(sum(self.held.values()) + self.activations + self.transient, self.start)


def trainer_memory(shape: ModelShape, setup: TrainingSetup, *, longest_row: int, rows: int = 0) -> TrainerMemory:
    """Returns the memory of each GPU. longest_row: tokens; a longer row than a pack is a pass of its own. rows: rows of
    an optimizer step, at most, which may be less than a pack; 0: unknown."""
    pack = min(setup.micro_batch_tokens, -(-rows // setup.data_ranks) * longest_row or setup.micro_batch_tokens)
    tokens = -(-max(pack, longest_row) // setup.sequence_ranks)
    held = {} if setup.is_offloaded else held_bytes(shape, setup)
    return TrainerMemory(
        held=held,
        activations=activation_bytes(shape, setup, tokens=tokens),
        transient=_transient_bytes(shape, setup, tokens=tokens),
        start=_start_bytes(shape, setup, held) if setup.has_ranks else 0,
    )


def _start_bytes(shape: ModelShape, setup: TrainingSetup, held: Mapping[str, int]) -> int:
    shards = sum(held.get(name, 0) for name in ("rounded weights", "float32 weights", "frozen models"))
    element = setup.compute_bytes if setup.lora_rank else FLOAT32
    return shards + element * max(shape.block_parameters, shape.outer_parameters)


def held_bytes(shape: ModelShape, setup: TrainingSetup) -> dict[str, int]:
    """Returns what a GPU holds between passes, after the last gradient of an update, by part."""
    trained = shape.adapter_parameters(setup.lora_rank, setup.lora_targets) if setup.lora_rank else shape.parameters
    models = 1 + setup.has_critic
    is_master = setup.has_ranks and setup.compute_bytes == BFLOAT16 and not setup.lora_rank
    rounded = 0 if is_master else setup.compute_bytes * shape.parameters
    frozen = (setup.needs_reference and not setup.lora_rank) + setup.teachers
    whole_gradient = FLOAT32 * trained if setup.has_ranks and setup.shards > 1 and not setup.syncs_each_pack else 0
    own_gradient = 0 if setup.has_ranks or setup.compute_bytes == FLOAT32 else setup.compute_bytes * trained
    sizes = {
        "rounded weights": rounded * models // setup.shards,
        "float32 weights": FLOAT32 * trained * models // setup.shards,
        "moments": int(2 * setup.moment_bytes * trained) * models // setup.shards,
        "gradients": FLOAT32 * trained * models // setup.shards + whole_gradient + own_gradient,
        "frozen models": frozen * setup.compute_bytes * shape.parameters // setup.shards,
    }
    return {name: size for name, size in sizes.items() if size}


def activation_bytes(shape: ModelShape, setup: TrainingSetup, *, tokens: int) -> int:
    """Returns a bound of what a pass keeps for its backward pass; attention does not keep scores (flash kernels)."""
    attention = tokens * block_activation_bytes(shape, setup.compute_bytes, is_compiled=setup.is_compiled)
    state = tokens * state_activation_bytes(shape, setup.compute_bytes)
    outer = tokens * shape.hidden * (2 * FLOAT32 + 2 * setup.compute_bytes)
    if setup.recompute == "full":
        largest = attention + state if shape.has_attention_beside_state else max(attention, state)
        return shape.layers * tokens * shape.hidden * setup.compute_bytes + largest + outer
    return shape.attention_layers * attention + shape.state_layers * state + outer


def state_activation_bytes(shape: ModelShape, compute_bytes: int) -> int:
    """Returns a bound of what a block with a recurrent state keeps for one token; beside attention, of the state alone.

    The recurrence computes in float32 over chunks, and keeps scores within a chunk for each head.
    """
    if shape.state is None:
        return 0
    recurrence = FLOAT32 * (_RECURRENT_TENSORS * shape.state.width + _CHUNK_SCORES * _CHUNK * shape.state.heads)
    mixer = compute_bytes * 3 * shape.state.width + recurrence
    return mixer if shape.has_attention_beside_state else mixer + _rest_activation_bytes(shape, compute_bytes)


def block_activation_bytes(shape: ModelShape, compute_bytes: int, *, is_compiled: bool) -> int:
    """Returns a bound of what a block keeps for one token. Norms compute in float32; a compiled block computes norms
    and activation functions again (measured: 64 kB of the 74 kB for Qwen3-1.7B)."""
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    if is_compiled and not shape.experts:
        return compute_bytes * (4 * shape.hidden + 3 * queries + 4 * keys + 3 * shape.intermediate)
    head_norms = (queries + keys) * (FLOAT32 + compute_bytes) if shape.has_head_norms else 0
    gated = 3 * queries if shape.has_output_gate else 0
    attention = compute_bytes * (4 * queries + 6 * keys + gated) + FLOAT32 * (2 * shape.head + shape.heads)
    return head_norms + attention + _rest_activation_bytes(shape, compute_bytes)


def _rest_activation_bytes(shape: ModelShape, compute_bytes: int) -> int:
    """Returns what norms and the feed-forward part of a block keep for one token."""
    norms = 2 * shape.hidden * (FLOAT32 + 2 * compute_bytes) + 2 * FLOAT32
    width = shape.intermediate * max(1, shape.active_experts)
    feed_forward = compute_bytes * 4 * (width + shape.shared_intermediate)
    if shape.experts:
        feed_forward += FLOAT32 * 3 * shape.experts + compute_bytes * 4 * shape.active_experts * shape.hidden
    return norms + feed_forward + compute_bytes * shape.hidden


def _transient_bytes(shape: ModelShape, setup: TrainingSetup, *, tokens: int) -> int:
    computed = setup.compute_bytes
    logits = min(HEAD_BYTES[setup.is_compiled], 3 * FLOAT32 * tokens * shape.vocabulary)
    is_trained = not setup.lora_rank
    head_gradient = (FLOAT32 + computed) * shape.vocabulary * shape.hidden * is_trained
    if not setup.has_ranks:
        return logits + head_gradient
    gathered = computed * (shape.outer_parameters + 2 * shape.block_parameters)
    block_gradient = (computed + FLOAT32) * shape.block_parameters * is_trained
    outer_gradient = (computed + FLOAT32) * shape.outer_parameters * is_trained
    return gathered + max(logits + head_gradient, block_gradient, outer_gradient)
