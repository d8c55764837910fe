"""AdamW and Muon on float32 master weights. All tensors are this rank's shards."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.optim.adamw import adamw

from astraflow.trainer.engines.compiled_update import has_whole_blocks, step_rates, update_coded
from astraflow.trainer.engines.moment_codes import CodedMoment, row_chunks

_CPU_CHUNK_ELEMENTS = 1 << 16
"""A chunk's float32 values fit in the cache of a core."""

_DEVICE_CHUNK_ELEMENTS = 1 << 25
"""Bounds the temporary memory on an accelerator: 256 MiB."""

_GOLDEN_STEP = 40_503
"""65536 divided by the golden ratio: its multiples modulo 65536 are spread evenly."""

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


def local_shard(value: Tensor) -> Tensor:
    """Returns the part of a DTensor on this rank; a plain tensor as it is. Without gradient, sharing memory."""
    shard: Tensor = value.to_local() if isinstance(value, DTensor) else value
    return shard.detach()


def with_sharding(shard: Tensor, like: Tensor) -> Tensor:
    """Returns a shard as the DTensor whose part it is, if `like` is one. Shares memory.

    shard: in the shape of `like`, or with other columns where `like` is sharded by rows.
    """
    return _part_of(like, shard) if isinstance(like, DTensor) else shard


def chunks(elements: int, device: torch.device) -> Iterator[slice]:
    """Returns the slices in which a flat tensor is processed where temporary values are needed."""
    size = chunk_elements(device)
    return (slice(begin, min(begin + size, elements)) for begin in range(0, elements, size))


def chunk_elements(device: torch.device) -> int:
    """Returns the elements of a chunk that is processed at a time."""
    return _CPU_CHUNK_ELEMENTS if device.type == "cpu" else _DEVICE_CHUNK_ELEMENTS


class AdamW:
    """AdamW (arXiv:1711.05101), whose moments are stored in float32, bfloat16, or 8 bits (those of matrices).

    In bfloat16 the second moment is rounded up or down in proportion to the distance: nearest rounding would drop every
    change of less than 1/256 of the value, and with beta 0.999 no step changes it more downwards, so it could never
    fall. The rounding thresholds of an element are a low-discrepancy sequence over the steps, so they need no random
    state.
    """

    def __init__(
        self,
        masters: Mapping[str, Tensor],
        *,
        betas: tuple[float, float],
        epsilon: float,
        moments: torch.dtype,
        is_compiled: bool = False,
    ) -> None:
        """is_compiled: 8-bit moments of matrices whose rows are whole blocks are updated in one compiled pass."""
        self._is_compiled = is_compiled
        self._options: dict[str, Any] = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": epsilon,
            "amsgrad": False,
            "maximize": False,
            "fused": True,
        }
        coded = {name: master for name, master in masters.items() if moments == torch.uint8 and master.ndim > 1}
        self._coded_first = CodedMoment(coded, is_signed=True)
        self._coded_second = CodedMoment(coded, is_signed=False)
        exact = torch.float32 if moments == torch.uint8 else moments
        whole = {name: master for name, master in masters.items() if name not in coded}
        self._first = {name: torch.zeros_like(master, dtype=exact) for name, master in whole.items()}
        self._second = {name: torch.zeros_like(master, dtype=exact) for name, master in whole.items()}
        self.applied = torch.zeros((), dtype=torch.int64)
        """Updates that changed the weights, on the host."""
        self._thresholds = torch.randint(0, 1 << 16, (_CPU_CHUNK_ELEMENTS,), generator=torch.Generator().manual_seed(0))

    def use(self, *, betas: tuple[float, float], epsilon: float) -> None:
        """Sets the decays and the epsilon of the next updates."""
        self._options |= {"beta1": betas[0], "beta2": betas[1], "eps": epsilon}

    def moments(self) -> dict[tuple[str, str], Tensor]:
        """Returns (moment, name of the weight) -> tensor, not copied."""
        parts = {
            "exp_avg": {**self._first, **self._coded_first.codes},
            "exp_avg_scale": self._coded_first.scales,
            "exp_avg_sq": {**self._second, **self._coded_second.codes},
            "exp_avg_sq_scale": self._coded_second.scales,
        }
        return {(moment, name): value for moment, values in parts.items() for name, value in values.items()}

    def step(
        self,
        masters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        *,
        learning_rate: float,
        gradient_scale: float,
        weight_decay: float,
    ) -> None:
        """Updates the masters that have a gradient. weight_decay: not applied to vectors. gradient_scale: factor of the
        gradients; the fused kernel multiplies by it, and leaves the product in `gradients`."""
        applied = int(self.applied)
        self.applied += 1
        for is_matrix in (True, False):
            names = [name for name in masters if name in gradients and (masters[name].ndim > 1) == is_matrix]
            names = [name for name in names if name in self._first or name in self._coded_first.codes]
            if not names:
                continue
            device = masters[names[0]].device
            options = {
                **self._options,
                "lr": learning_rate,
                "weight_decay": weight_decay if is_matrix else 0.0,
                "grad_scale": None
                if gradient_scale == 1.0
                else torch.tensor(1.0 / gradient_scale, dtype=torch.float32, device=device),
            }
            is_coded = names[0] in self._coded_first.codes
            if not is_coded and self._first[names[0]].dtype == torch.float32:
                _adamw(
                    *([source[name] for name in names] for source in (masters, gradients, self._first, self._second)),
                    applied=applied,
                    options=options,
                )
                continue
            thresholds = ((self._thresholds + applied * _GOLDEN_STEP) & 0xFFFF).to(device, torch.int32)
            if is_coded:
                thresholds = thresholds / (1 << 16)
                rates = step_rates(options, gradient_scale=gradient_scale, applied=applied, device=device)
            for name in names:
                master, gradient = masters[name], gradients[name]
                if not is_coded:
                    self._step_rounded(name, master, gradient, applied, thresholds, options)
                elif self._is_compiled and has_whole_blocks(master):
                    moments = (self._coded_first, self._coded_second)
                    update_coded(name, master, gradient, moments, rates=rates, thresholds=thresholds)
                else:
                    self._step_coded(name, master, gradient, applied, thresholds, options)

    def _step_rounded(
        self,
        name: str,
        master: Tensor,
        gradient: Tensor,
        applied: int,
        thresholds: Tensor,
        options: Mapping[str, object],
    ) -> None:
        """Updates one master, with its moments decoded a chunk at a time."""
        flat = [value.view(-1) for value in (master, gradient, self._first[name], self._second[name])]
        for part in chunks(master.numel(), master.device):
            weight, slope, first, second = (value[part] for value in flat)
            exact_first, exact_second = first.float(), second.float()
            _adamw([weight], [slope], [exact_first], [exact_second], applied=applied, options=options)
            first.copy_(exact_first)
            second.view(torch.int16).copy_(_rounded_bits(exact_second, thresholds))

    def _step_coded(
        self,
        name: str,
        master: Tensor,
        gradient: Tensor,
        applied: int,
        thresholds: Tensor,
        options: Mapping[str, object],
    ) -> None:
        """Updates one master, with its moments decoded some rows at a time. thresholds: from 0 to below 1."""
        weights, slopes = (value.view(len(value), math.prod(value.shape[1:])) for value in (master, gradient))
        for rows in row_chunks(master, elements=chunk_elements(master.device)):
            first, second = (moment.read(name, rows) for moment in (self._coded_first, self._coded_second))
            _adamw([weights[rows]], [slopes[rows]], [first], [second], applied=applied, options=options)
            self._coded_first.write(name, rows, first, thresholds)
            self._coded_second.write(name, rows, second, thresholds)


class Muon:
    """Muon: momentum, orthogonalised by Newton-Schulz iterations, with the step size of AdamW.

    The step of a matrix [m, n] is scaled by 0.2 * sqrt(max(m, n)), so that AdamW's learning rates and weight decay fit.
    A sharded matrix is gathered for its iterations, one matrix at a time, on every rank. A tensor [experts, m, n] is a
    stack of matrices, or of several in each [m, n]; whole experts on a rank need no other rank. Iterations run in
    bfloat16 on accelerators and in float32 on a CPU.
    Source: https://kellerjordan.github.io/posts/muon/ and, for the step size, arXiv:2502.16982.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        momentum: float,
        moments: torch.dtype,
        matrix_shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """matrix_shapes: shape of the matrices of a parameter, where these are not its last two dimensions."""
        self._parameters = dict(parameters)
        self._shapes = {
            name: matrix_shapes.get(name, tuple(parameter.shape[-2:])) for name, parameter in parameters.items()
        }
        self._momentum = momentum
        self._averages = {
            name: torch.zeros_like(local_shard(value), dtype=moments, memory_format=torch.contiguous_format)
            for name, value in parameters.items()
        }

    def moments(self) -> dict[tuple[str, str], Tensor]:
        """Returns (moment, name of the weight) -> tensor, not copied."""
        return {("momentum", name): value for name, value in self._averages.items()}

    def step(
        self,
        masters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        *,
        learning_rate: float,
        gradient_scale: float,
        weight_decay: float,
    ) -> None:
        """Updates the masters that have a gradient; collective over the ranks of sharded ones."""
        for name, average in self._averages.items():
            if name not in gradients:
                continue
            gradient = gradients[name] * gradient_scale
            exact = average.float().lerp_(gradient, 1 - self._momentum)
            average.copy_(exact)
            shape = self._shapes[name]
            direction = _orthogonal_shard(gradient.lerp_(exact, self._momentum), self._parameters[name], shape)
            size = 0.2 * math.sqrt(max(shape))
            masters[name].mul_(1 - learning_rate * weight_decay).add_(direction, alpha=-learning_rate * size)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Returns matrices `[..., m, n]` with the same singular vectors and singular values near 1, in the same shape."""
    a, b, c = _NEWTON_SCHULZ
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    current = matrices.to(torch.float32 if matrices.device.type == "cpu" else torch.bfloat16)
    current = current.mT if is_tall else current
    norms: Tensor = current.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    current = current / norms
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = current @ current.mT
        current = a * current + (b * gram + c * gram @ gram) @ current
    return current.mT if is_tall else current


def _orthogonal_shard(direction: Tensor, parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns this rank's part of the orthogonalised matrices of this shape; collective where ranks share one."""
    if not isinstance(parameter, DTensor) or _has_whole_experts(parameter):
        return _orthogonal_matrices(direction, shape)
    whole = _orthogonal_matrices(_part_of(parameter, direction).full_tensor(), shape)
    mesh = parameter.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return local_shard(everywhere.redistribute(mesh, parameter.placements))


def _has_whole_experts(parameter: DTensor) -> bool:
    """Returns whether every rank holds whole matrices of a stack."""
    return parameter.ndim > 2 and all(kind.is_replicate() or kind.is_shard(0) for kind in parameter.placements)


def _orthogonal_matrices(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    matrices = values.reshape(values.numel() // math.prod(shape), *shape)
    return orthogonalise(matrices).to(values.dtype).view(values.shape)


def _part_of(whole: DTensor, shard: Tensor) -> DTensor:
    """Returns the DTensor of the sharding of `whole` whose part on this rank is `shard`."""
    shape, stride = whole.shape, whole.stride()
    if shard.shape[1:] != local_shard(whole).shape[1:]:  # scales of its rows
        shape, stride = torch.Size((len(whole), *shard.shape[1:])), (math.prod(shard.shape[1:]), 1)
    return DTensor.from_local(shard, whole.device_mesh, whole.placements, run_check=False, shape=shape, stride=stride)


def _adamw(
    masters: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    *,
    applied: int,
    options: Mapping[str, object],
) -> None:
    steps = torch.full((len(masters),), float(applied), device=masters[0].device)
    adamw(masters, gradients, first, second, [], list(steps.unbind()), **options)  # type: ignore[arg-type]


def _rounded_bits(values: Tensor, thresholds: Tensor) -> Tensor:
    """Returns the upper 16 bits of float32 values >= 0, rounded up if the lower 16 bits plus a threshold overflow."""
    bits = values.view(torch.int32)
    whole = bits.numel() // thresholds.numel() * thresholds.numel()
    bits[:whole].view(-1, thresholds.numel()).add_(thresholds)
    bits[whole:].add_(thresholds[: bits.numel() - whole])
    return bits >> 16
