"""Simulated trainer: a step takes as long and changes weights as in real training, without a model or torch."""

import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from astraflow.contract.batches import Batch, Rows
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.rollouts.trajectories import NO_VERSION
from astraflow.contract.weights import Dtype
from astraflow.runtime.config.base import Config
from astraflow.trainer.backends import backends
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import TensorShapes

Weights = npt.NDArray[np.float32]

_INITIAL_STD = 0.02
"""Standard deviation of the initial weights, as in common transformer initialisations."""

_WEIGHTS, _STATE = "weights.npy", "state.json"


class SpeedChange(Config):
    """Change of the training speed, and so of the rollouts that the run needs."""

    from_step: int = Field(ge=0)
    """Number of completed steps from which the factor applies, until a later change applies."""
    factor: float = Field(gt=0)
    """A step takes 1/factor of its usual time."""


class ScriptedOptions(Config):
    """Options of the simulated backend."""

    step_s: float = Field(default=0.2, ge=0)
    """Median duration of a step, without its tokens."""
    token_s: float = Field(default=0.0, ge=0)
    """Duration added for each token in the batch that the policy wrote."""
    step_sigma: float = Field(default=0.1, ge=0)
    """Standard deviation of the natural logarithm of the duration (log-normal); with 0 it is always the median."""
    speed_changes: tuple[SpeedChange, ...] = ()
    """Speed changes; the last one that has begun applies. The factor is 1 before the first and without any."""
    width: int = Field(default=64, ge=1)
    """Size of the tensors: each layer has `4 * width * width + width` elements."""
    layers: int = Field(default=2, ge=1)
    density: float = Field(default=0.02, ge=0, le=1)
    """Approximate share of the published bf16 elements that change in a step."""


@backends.register("scripted", options=ScriptedOptions)
class ScriptedBackend:
    """Simulated trainer: weights on a seeded random walk in float32, published in bf16; a step sleeps.

    As in real training only some bf16 elements change in a step, those whose float32 value crosses a rounding boundary:
    small weights, whose steps in the last place are small, far more often than large weights. The step size of the walk
    is chosen so that `density` of all elements change. Weights depend only on the seed and on the trained batches:
    equal bits prove that the same batches were trained, each as often, in the same order.
    """

    is_simulated = True
    batching: BatchingFacts | None = None
    frozen_base = None
    row_limits = RowLimits()

    def __init__(
        self, options: ScriptedOptions, model: Mapping[str, Any], algorithm: Mapping[str, Any], *, seed: int
    ) -> None:
        self._options = options
        self._seed = seed
        self._steps = 0
        self._shapes = _shapes(options)
        elements = sum(math.prod(shape) for shape in self._shapes.values())
        self._weights: Weights = np.random.default_rng((seed, 0)).normal(0, _INITIAL_STD, elements).astype(np.float32)
        self._step_size = _step_size(self._weights, options.density)

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Changes the weights and sleeps for the rest of the step; the metrics describe the batch."""
        began = time.monotonic()
        random = np.random.default_rng((self._seed, self._steps + 1, fingerprint(batch)))
        usual_s = self._options.step_s + self._options.token_s * len(Rows.of(batch.rows).columns.logprobs)
        median_s = usual_s / speed_factor(self._options.speed_changes, steps=self._steps)
        duration_s = median_s * random.lognormal(0, self._options.step_sigma)
        self._weights = self._weights + self._step_size * random.standard_normal(self._weights.size, dtype=np.float32)
        self._steps += 1
        time.sleep(max(0.0, began + duration_s - time.monotonic()))
        return _metrics(batch)

    @property
    def published_shapes(self) -> TensorShapes:
        """Shapes of the simulated tensors, in bf16."""
        return {name: (Dtype.BFLOAT16, shape) for name, shape in self._shapes.items()}

    def snapshot(self, staged: StagedVersion) -> None:
        """Writes the weights in bf16."""
        offset = 0
        with staged.open_for_writing() as views:
            for name, shape in self._shapes.items():
                elements = math.prod(shape)
                views[name][:] = bfloat16_bits(self._weights[offset : offset + elements])
                offset += elements

    def probe(self) -> None:
        """Returns None: there is no model to score with."""

    def capture(self) -> "ScriptedState":
        """Returns the float32 weights, which steps replace and do not change, and the number of steps."""
        return ScriptedState(weights=self._weights, steps=self._steps, step_size=self._step_size)

    def load(self, folder: Path) -> None:
        """Restores a written state."""
        try:
            weights = np.load(folder / _WEIGHTS, allow_pickle=False)
            state = json.loads((folder / _STATE).read_text())
            steps, step_size = int(state["steps"]), float(state["stride"])
        except (OSError, ValueError, KeyError, TypeError, EOFError) as problem:
            raise CorruptData(
                f"cannot restore the scripted trainer from {str(folder)!r}: {problem}; use another checkpoint",
                code="checkpoint.unreadable_state",
            ) from problem
        if weights.dtype != np.float32 or weights.shape != self._weights.shape:
            raise InvalidInput(
                f"cannot restore {str(folder / _WEIGHTS)!r}: it holds {weights.dtype} {weights.shape}, not float32 "
                f"{self._weights.shape}; restore the options of the trainer, or start a new run",
                code="checkpoint.shape_mismatch",
            )
        self._weights, self._steps, self._step_size = weights, steps, step_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedState:
    """Captured state of the simulated backend."""

    weights: Weights
    steps: int
    step_size: float

    @property
    def size_bytes(self) -> int:
        return self.weights.nbytes

    def write(self, folder: Path) -> None:
        """Writes the state. Raises: OSError."""
        content = io.BytesIO()  # numpy's own write to a file does not say that the disk is full
        np.save(content, self.weights, allow_pickle=False)
        (folder / _WEIGHTS).write_bytes(content.getbuffer())
        (folder / _STATE).write_text(json.dumps({"steps": self.steps, "stride": self.step_size}))


def speed_factor(speed_changes: Sequence[SpeedChange], *, steps: int) -> float:
    """Returns the speed after so many steps, as a multiple of the usual speed.

    >>> changes = (SpeedChange(from_step=2, factor=1.6), SpeedChange(from_step=4, factor=1.0))
    >>> [speed_factor(changes, steps=steps) for steps in (1, 2, 3, 4)]
    [1.0, 1.6, 1.6, 1.0]
    """
    begun = [change for change in speed_changes if change.from_step <= steps]
    return max(begun, key=lambda change: change.from_step).factor if begun else 1.0


def fingerprint(batch: Batch) -> int:
    """Returns a 64-bit hash of a step's input: the batch's id, its rows' tasks and their content.

    It does not depend on whether the batch is delivered again or how it was transferred.
    """
    rows = Rows.of(batch.rows)
    columns = rows.columns
    digest = xxhash.xxh3_64(f"{batch.id}/{rows.tasks}/{columns.policies}/{columns.rewards}".encode())
    digest.update(f"/{columns.span_ends}/{columns.span_lengths}/{columns.span_versions}".encode())
    digest.update(np.ascontiguousarray(columns.tokens, dtype="<i4").data)
    digest.update(np.ascontiguousarray(columns.logprobs, dtype="<f4").data)
    return digest.intdigest()


def bfloat16_bits(values: Weights) -> npt.NDArray[np.uint16]:
    """Returns the bf16 nearest to each float32, ties to even, as bits; for finite values.

    >>> [hex(bits) for bits in bfloat16_bits(np.array([1.0, -2.5], dtype=np.float32))]
    ['0x3f80', '0xc020']
    """
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def _shapes(options: ScriptedOptions) -> dict[str, tuple[int, ...]]:
    """Returns transformer-like names and shapes."""
    width = options.width
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(options.layers):
        shapes[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = (3 * width, width)
        shapes[f"model.layers.{layer}.self_attn.o_proj.weight"] = (width, width)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (width,)
    return shapes


def _step_size(weights: Weights, density: float) -> float:
    """Returns the standard deviation of a step with which `density` of the bf16 values change.

    A value between two rounding boundaries a gap apart crosses one with probability E|step| / gap, at most 1. The
    share that changes grows with the step size, so bisection finds it.
    """
    gaps = np.exp2(np.floor(np.log2(np.maximum(np.abs(weights), np.finfo(np.float32).tiny))) - 7)
    low, high = 0.0, float(gaps.max()) * 10
    for _ in range(60):
        middle = (low + high) / 2
        mean_step = middle * math.sqrt(2 / math.pi)
        share = float(np.minimum(1.0, mean_step / gaps).mean())
        low, high = (middle, high) if share < density else (low, middle)
    return high if density else 0.0


def _metrics(batch: Batch) -> dict[str, float]:
    columns = Rows.of(batch.rows).columns
    ages = [batch.version - version for version in columns.oldest_versions if version != NO_VERSION]
    return {
        "reward_mean": _mean(columns.rewards),
        "staleness_mean": _mean(ages),
        "staleness_max": float(max(ages, default=0)),
        "tokens_mean": len(columns.logprobs) / max(len(columns), 1),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
