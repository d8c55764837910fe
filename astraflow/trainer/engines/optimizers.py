"""Optimizers over float32 master weights: AdamW and Muon, for plain tensors and for the shards of FSDP2."""

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Literal, Self

import torch
from blake3 import blake3
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.distributed import ProcessGroup, all_reduce
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # used by torch's own checkpoints

from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.trainer.engines.base import UpdateResult
from astraflow.trainer.engines.moment_codes import row_chunks
from astraflow.trainer.engines.update_rules import AdamW, Muon, chunk_elements, chunks, local_shard, with_sharding

WEIGHT_PREFIX = "weight/"
"""Prefix of the master weights, and of constant ones, among the tensors of a state."""

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerOptions(Config):
    """Optimizer, its learning-rate schedule, and the precision of its state."""

    optimizer: Annotated[Literal["adamw", "muon"], SettableBy.AGENT] = "adamw"
    """`muon`: matrices by Muon, the rest (embeddings, output head, vectors) by AdamW, both with the same learning
    rate."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Highest learning rate, after the warm-up."""
    schedule: Annotated[Literal["constant", "linear", "cosine"], SettableBy.AGENT] = "constant"
    """Course of the learning rate after the warm-up. `linear` and `cosine` need `decay_steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate grows to its value."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps since the run began, warm-up included, at which the learning rate is lowest; then it stays."""
    min_learning_rate_ratio: float = Field(default=0.0, ge=0, le=1)
    """Lowest learning rate of `linear` and `cosine` as a share of the highest."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of AdamW's moments per step."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Term of the denominator of AdamW that avoids divisions by zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Not applied to norms and biases."""
    moments_dtype: Annotated[Literal["float32", "bfloat16", "uint8"], SettableBy.AGENT] = "float32"
    """Element type in which the moments are stored: bfloat16 saves 4 bytes per parameter, `uint8` (AdamW only; codes
    with a scale for each 256 elements of a row) saves 6. They are computed in float32."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""
    dithered_start: Annotated[bool, SettableBy.AGENT] = True
    """Spreads the initial float32 weights over the values that round to the stored ones, so that published weights
    follow small steps from the first one (docs/explanation/dead-zone.md)."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Maximum norm of the gradient; a larger gradient is scaled down to it."""

    @model_validator(mode="after")
    def _moments_fit(self) -> Self:
        if self.moments_dtype == "uint8" and self.optimizer == "muon":
            raise ValueError("moments_dtype 'uint8' needs optimizer 'adamw'; Muon has one moment: use 'bfloat16'")
        return self

    @model_validator(mode="after")
    def _schedule_is_complete(self) -> Self:
        if self.schedule == "constant":
            return self
        if self.decay_steps is None:
            raise ValueError(f"schedule {self.schedule!r} needs decay_steps: the step at which the decay ends")
        if self.decay_steps <= self.warmup_steps:
            raise ValueError(f"decay_steps must be greater than warmup_steps, {self.warmup_steps}")
        return self

    def learning_rate_at(self, update: int) -> float:
        """Returns the learning rate of the update that follows `update` others.

        >>> options = OptimizerOptions(learning_rate=1.0, schedule="linear", warmup_steps=1, decay_steps=5)
        >>> [options.learning_rate_at(update) for update in (0, 1, 2, 3, 4, 5, 9)]
        [0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
        """
        if update < self.warmup_steps:
            return self.learning_rate * (update + 1) / (self.warmup_steps + 1)
        if self.decay_steps is None or self.schedule == "constant":
            return self.learning_rate
        progress = min(1.0, (update - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        remaining = 1.0 - progress if self.schedule == "linear" else (1.0 + math.cos(math.pi * progress)) / 2
        return self.learning_rate * (self.min_learning_rate_ratio + (1.0 - self.min_learning_rate_ratio) * remaining)


class MasterOptimizer:
    """float32 weights that the optimizer updates. The model computes with their values rounded to the published type.

    Steps of reinforcement learning are often smaller than half a bf16 step. Rounded weights would lose them; the
    masters accumulate them until the rounded value changes. The gradient is taken at the rounded weights and applied to
    the masters (straight-through), so trainer and engines compute with exactly the same values.

    Parameters are plain tensors, or DTensors that are sharded or replicated over any mesh; every rank then makes the
    same calls. All element-wise work is done on the local shards; only the gradient's norm, and Muon's matrices, are
    exchanged between ranks. Updates are deterministic, and equal after a restore, bit for bit, at the same number of
    ranks.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        options: OptimizerOptions,
        *,
        rounded_to: torch.dtype,
        not_matrices: Collection[str] = (),
        matrix_shapes: Mapping[str, tuple[int, ...]] | None = None,
        shares_parameters: bool = False,
        is_compiled: bool = False,
    ) -> None:
        """not_matrices: names of embeddings and output head, which Muon leaves to AdamW. matrix_shapes: shape of the
        matrices that a parameter consists of, where it is not one matrix or a stack of its last two dimensions.
        shares_parameters: float32 parameters are the masters, because the engine rounds them whenever it gathers
        them. is_compiled: as for `AdamW`."""
        self.updates = 0
        """Optimizer steps since the run began, skipped ones included."""
        self._options = options
        self._rounded_to = rounded_to
        self._parameters = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        self._masters = {
            name: local_shard(value)
            if shares_parameters
            else local_shard(value).float().clone(memory_format=torch.contiguous_format)
            for name, value in self._parameters.items()
        }
        self._is_shared = shares_parameters
        self._gradients: dict[str, Tensor] = {}
        # A dict, not a set: every rank must gather the matrices in the same order.
        by_muon = {
            name: parameter
            for name, parameter in self._parameters.items()
            if options.optimizer == "muon" and parameter.ndim > 1 and name not in not_matrices
        }
        moments: torch.dtype = getattr(torch, options.moments_dtype)
        self._adamw = AdamW(
            {name: master for name, master in self._masters.items() if name not in by_muon},
            betas=options.betas,
            epsilon=options.epsilon,
            moments=moments,
            is_compiled=is_compiled,
        )
        self._muon = Muon(by_muon, momentum=options.muon_momentum, moments=moments, matrix_shapes=matrix_shapes or {})
        if options.dithered_start:  # a restore replaces all masters
            for name, parameter in self._parameters.items():
                dither(self._masters[name], name, whole=parameter, grid=rounded_to)
        self._write_back()

    def use(self, options: OptimizerOptions) -> None:
        """Takes learning rate, betas, epsilon, decay and clip of the next updates from other options; what decides how
        the state is stored stays."""
        self._options = options
        self._adamw.use(betas=options.betas, epsilon=options.epsilon)

    def accumulate(self) -> None:
        """Adds the model's gradients in float32; call after each backward pass. A float32 gradient stays in the model,
        where autograd adds to it."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None or parameter.grad.dtype == torch.float32:
                continue
            gradient = local_shard(parameter.grad)
            if name in self._gradients:
                self._gradients[name].add_(gradient)
            else:
                self._gradients[name] = gradient.float()
            parameter.grad = None

    @torch.no_grad()
    def update(self, *, is_loss_finite: bool) -> UpdateResult:
        """Updates the masters with the accumulated gradients, rounds them into the model, and clears the gradients.

        When norm or loss is not finite, nothing is updated, but the step counts. The norm is the only value for which
        the host waits.
        """
        learning_rate = self.learning_rate
        gradients = self._take_gradients()
        norm = float(self._norm(gradients))
        is_skipped = not (is_loss_finite and math.isfinite(norm))
        if not is_skipped:
            # As torch.nn.utils.clip_grad_norm_ does, so that results are comparable.
            clip = min(1.0, self._options.grad_clip / (norm + 1e-6))
            step = {"learning_rate": learning_rate, "gradient_scale": clip, "weight_decay": self._options.weight_decay}
            self._adamw.step(self._masters, gradients, **step)
            self._muon.step(self._masters, gradients, **step)
            self._write_back()
        self.updates += 1
        return UpdateResult(grad_norm=0.0 if is_skipped else norm, learning_rate=learning_rate, is_skipped=is_skipped)

    @property
    def learning_rate(self) -> float:
        return self._options.learning_rate_at(self.updates)

    def weights(self) -> dict[str, Tensor]:
        """Returns the float32 masters by name, not copied; DTensors where the parameter is one. Published weights are
        their rounded values."""
        return {name: with_sharding(master, self._parameters[name]) for name, master in self._masters.items()}

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns all tensors that a checkpoint must hold, by name, not copied; DTensors where the parameter is one."""
        moments = {**self._adamw.moments(), **self._muon.moments()}
        tensors = {f"{WEIGHT_PREFIX}{name}": weight for name, weight in self.weights().items()}
        for (moment, name), value in moments.items():
            tensors[f"{moment}/{name}"] = with_sharding(value, self._parameters[name])
        tensors["updates"] = self._adamw.applied
        return tensors

    @torch.no_grad()
    def restored(self, *, updates: int) -> None:
        """Continues from tensors that were copied into `state_tensors`. updates: number of updates at that time."""
        self.updates = updates
        self._gradients.clear()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._write_back()

    def _take_gradients(self) -> dict[str, Tensor]:
        """Returns the gradients, of this rank's shards, in float32, and removes them from the model."""
        gradients = {}
        for name, parameter in self._parameters.items():
            gradient = self._gradients.pop(name, None)
            if parameter.grad is not None:
                rest = local_shard(parameter.grad).float()
                gradient = rest if gradient is None else gradient.add_(rest)
                parameter.grad = None
            if gradient is not None:
                gradients[name] = gradient.contiguous()
        return gradients

    def _norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Returns the norm of the whole gradient: every element counts once, whatever ranks hold it."""
        if not gradients:
            return torch.zeros(())
        norms = torch._foreach_norm(list(gradients.values()), 2)  # as clip_grad_norm_ computes it
        by_groups: dict[tuple[ProcessGroup, ...], list[Tensor]] = {}
        for name, norm in zip(gradients, norms, strict=True):
            by_groups.setdefault(_sharding_groups(self._parameters[name]), []).append(norm)
        total = torch.zeros((), device=norms[0].device)
        for groups, members in by_groups.items():
            squares = torch.stack(members).square().sum()
            for group in groups:
                all_reduce(squares, group=group)
            total += squares
        return total.sqrt()

    @torch.no_grad()
    def _write_back(self) -> None:
        if self._is_shared:
            return
        for name, parameter in self._parameters.items():
            _write_rounded(self._masters[name], local_shard(parameter), self._rounded_to)


def _sharding_groups(parameter: Tensor) -> tuple[ProcessGroup, ...]:
    """Returns the groups of ranks that hold different parts of a parameter."""
    if not isinstance(parameter, DTensor):
        return ()
    mesh = parameter.device_mesh
    return tuple(mesh.get_group(axis) for axis, kind in enumerate(parameter.placements) if not kind.is_replicate())


def _write_rounded(master: Tensor, target: Tensor, dtype: torch.dtype) -> None:
    """Copies a master into the model, rounded to `dtype`."""
    if dtype in (target.dtype, torch.float32):
        target.copy_(master)
        return
    values, targets = master.view(-1), target.view(-1)
    for part in chunks(values.numel(), values.device):
        targets[part].copy_(values[part].to(dtype))


_FACTORS = (0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64)
"""Odd factors of the hash of a position, as signed integers of 64 bits. (SplitMix64)"""


@torch.no_grad()
def dither(masters: Tensor, name: str, *, whole: Tensor, grid: torch.dtype) -> None:
    """Adds a fixed offset to each float32 element that `grid` can represent; rounding to `grid` gives it back.

    masters: this rank's part of the parameter `whole`. The offset depends on the name and on the position in the whole
    tensor, so that any division over ranks gives the same values. Zeros, infinities and subnormal numbers of `grid`,
    which are closer together than any step, stay.
    """
    limits = torch.finfo(grid)
    free_bits = round(math.log2(limits.eps / torch.finfo(torch.float32).eps))
    if not free_bits or not masters.numel():
        return
    seed = int.from_bytes(blake3(name.encode()).digest(8), "little", signed=True)
    values, (rows, columns) = masters.view(masters.shape or (1,)), _positions(whole, masters.device)
    for part in row_chunks(values, elements=chunk_elements(masters.device)):
        hashes = (rows[part] + columns).mul_(_FACTORS[0]).add_(seed)
        hashes.bitwise_xor_(hashes >> 32).mul_(_FACTORS[1])
        # Counted in the last bits, all zero on the grid, a cell has the same width on both sides of its value, also at
        # powers of two, below which it is half as wide. At half the width, a tie, rounding can go to the neighbour.
        offsets = (hashes >> (64 - free_bits)).clamp_(min=1 - 2 ** (free_bits - 1)).int()
        bits, sizes = values[part].view(torch.int32), values[part].abs()
        is_moved = (bits % 2**free_bits == 0) & (sizes >= limits.smallest_normal) & (sizes <= limits.max)
        bits.add_(offsets.mul_(is_moved))


def _positions(whole: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the positions in the whole flat tensor at which the rows of this rank begin, and those of the elements of
    a row from there; int64, to be added to each other."""
    sizes, offsets = tuple(whole.shape), (0,) * whole.ndim
    if isinstance(whole, DTensor):
        sizes, offsets = compute_local_shape_and_global_offset(whole.shape, whole.device_mesh, whole.placements)
    columns = torch.zeros((), dtype=torch.int64, device=device)
    for offset, size, width in zip(offsets[1:], sizes[1:], whole.shape[1:], strict=True):
        columns = columns.unsqueeze(-1) * width + torch.arange(offset, offset + size, device=device)
    first, count = (offsets[0], sizes[0]) if sizes else (0, 1)
    rows = torch.arange(first, first + count, device=device) * math.prod(whole.shape[1:])
    return rows.view(-1, *(1 for _ in sizes[1:])), columns
