"""The sleeping trainer: takes as long as a step would and moves weights as a step would, without a model or torch."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from astraflow.contract.batches import Batch
from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Dtype
from astraflow.runtime.config import Config
from astraflow.trainer.backends import backends
from astraflow.weights.drafts import Draft
from astraflow.weights.tensors import TensorShapes

Weights = npt.NDArray[np.float32]

_INITIAL_SPREAD = 0.02
"""Standard deviation of the initial weights, that of common transformer initialisations."""

_WEIGHTS, _STATE = "weights.npy", "state.json"


class Pace(Config):
    """A change of how fast it trains: what makes a run need more rollouts, or fewer."""

    from_step: int = Field(ge=0)
    """Holds from the step after so many on, until the next one does."""
    factor: float = Field(gt=0)
    """Steps take 1/factor of their usual time."""


class ScriptedOptions(Config):
    """How the stand-in behaves."""

    step_s: float = Field(default=0.2, ge=0)
    """Median duration of a step, besides its tokens."""
    token_s: float = Field(default=0.0, ge=0)
    """Added to it for each token that the policy wrote in the batch."""
    step_sigma: float = Field(default=0.1, ge=0)
    """Spread of it all: standard deviation of its natural logarithm (log-normal); 0 for always the median."""
    paces: tuple[Pace, ...] = ()
    """Demand steps: the last of these that has begun counts; before the first, and without any, the factor is 1."""
    width: int = Field(default=64, ge=1)
    """Size of the tensors: each layer has `4 * width * width + width` elements."""
    layers: int = Field(default=2, ge=1)
    density: float = Field(default=0.02, ge=0, le=1)
    """Share of the published bf16 elements that change in a step, about."""


@backends.register("scripted", options=ScriptedOptions)
class ScriptedBackend:
    """Weights on a seeded random walk in float32, published in bf16, and a step that is a nap.

    As in real training only some bf16 elements change in a step, those whose float32 value crosses a rounding boundary:
    small weights, whose steps in the last place are small, far more often than large ones. The stride of the walk is
    chosen so that `density` of all elements change. Everything follows from the seed and from what was trained, batch
    by batch: equal bits mean that the same batches were trained, each as often, in the same order.
    """

    is_simulated = True

    def __init__(
        self, options: ScriptedOptions, model: Mapping[str, Any], algorithm: Mapping[str, Any], *, seed: int
    ) -> None:
        self._options = options
        self._seed = seed
        self._steps = 0
        self._shapes = _shapes(options)
        elements = sum(math.prod(shape) for shape in self._shapes.values())
        self._weights: Weights = (
            np.random.default_rng((seed, 0)).normal(0, _INITIAL_SPREAD, elements).astype(np.float32)
        )
        self._stride = _stride(self._weights, options.density)

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Walk on and sleep for the rest of the step; the metrics are the batch's own."""
        began = time.monotonic()
        random = np.random.default_rng((self._seed, self._steps + 1, fingerprint(batch)))
        usual_s = self._options.step_s + self._options.token_s * _written(batch)
        median_s = usual_s / pace(self._options.paces, steps=self._steps)
        duration_s = median_s * random.lognormal(0, self._options.step_sigma)
        self._weights = self._weights + self._stride * random.standard_normal(self._weights.size, dtype=np.float32)
        self._steps += 1
        time.sleep(max(0.0, began + duration_s - time.monotonic()))
        return _metrics(batch)

    @property
    def published(self) -> TensorShapes:
        """Its tensors in bf16."""
        return {name: (Dtype.BFLOAT16, shape) for name, shape in self._shapes.items()}

    def snapshot(self, draft: Draft) -> None:
        """The weights in bf16."""
        offset = 0
        with draft.writing() as places:
            for name, shape in self._shapes.items():
                elements = math.prod(shape)
                places[name][:] = bfloat16_bits(self._weights[offset : offset + elements])
                offset += elements

    def probe(self) -> None:
        """It has no model that could score anything."""

    def save(self, folder: Path) -> None:
        """The float32 weights and the number of steps."""
        with (folder / _WEIGHTS).open("wb") as file:
            np.save(file, self._weights, allow_pickle=False)
        (folder / _STATE).write_text(json.dumps({"steps": self._steps, "stride": self._stride}))

    def load(self, folder: Path) -> None:
        """What `save` wrote."""
        try:
            weights = np.load(folder / _WEIGHTS, allow_pickle=False)
            state = json.loads((folder / _STATE).read_text())
            steps, stride = int(state["steps"]), float(state["stride"])
        except (OSError, ValueError, KeyError, TypeError, EOFError) as problem:
            raise CorruptData(f"{folder} does not hold a scripted trainer's state: {problem}") from problem
        if weights.dtype != np.float32 or weights.shape != self._weights.shape:
            raise CorruptData(f"{folder / _WEIGHTS} holds {weights.dtype} {weights.shape}, not {self._weights.shape}")
        self._weights, self._steps, self._stride = weights, steps, stride


def pace(paces: Sequence[Pace], *, steps: int) -> float:
    """How many times as fast as usual it trains after so many steps.

    >>> [pace((Pace(from_step=2, factor=1.6), Pace(from_step=4, factor=1.0)), steps=steps) for steps in (1, 2, 3, 4)]
    [1.0, 1.6, 1.6, 1.0]
    """
    begun = [one for one in paces if one.from_step <= steps]
    return max(begun, key=lambda one: one.from_step).factor if begun else 1.0


def fingerprint(batch: Batch) -> int:
    """64 bits that follow from what a step is made of: the batch's id, its rows' tasks and all that they carry.

    Whether it is delivered for the first time plays no part, and neither does the way it travelled.
    """
    digest = xxhash.xxh3_64(batch.id.encode())
    for row in batch.rows:
        digest.update(f"/{row.task}/{row.trajectory.policy}/{row.trajectory.reward!r}/{row.trajectory.spans}".encode())
        digest.update(np.ascontiguousarray(row.trajectory.tokens, dtype="<i4").data)
        digest.update(np.ascontiguousarray(row.trajectory.logprobs, dtype="<f4").data)
    return digest.intdigest()


def bfloat16_bits(values: Weights) -> npt.NDArray[np.uint16]:
    """float32 -> the nearest bf16, ties to even, as bits; for finite values.

    >>> [hex(bits) for bits in bfloat16_bits(np.array([1.0, -2.5], dtype=np.float32))]
    ['0x3f80', '0xc020']
    """
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def _shapes(options: ScriptedOptions) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the manner of a transformer."""
    width = options.width
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(options.layers):
        shapes[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = (3 * width, width)
        shapes[f"model.layers.{layer}.self_attn.o_proj.weight"] = (width, width)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (width,)
    return shapes


def _stride(weights: Weights, density: float) -> float:
    """Standard deviation of a step with which `density` of the bf16 values change.

    A value somewhere between two rounding boundaries a gap apart crosses one with probability E|step| / gap, at most
    1. The share that changes grows with the stride, so halving the interval finds it.
    """
    gaps = np.exp2(np.floor(np.log2(np.maximum(np.abs(weights), np.finfo(np.float32).tiny))) - 7)
    low, high = 0.0, float(gaps.max()) * 10
    for _ in range(60):
        middle = (low + high) / 2
        mean_step = middle * math.sqrt(2 / math.pi)
        share = float(np.minimum(1.0, mean_step / gaps).mean())
        low, high = (middle, high) if share < density else (low, middle)
    return high if density else 0.0


def _written(batch: Batch) -> int:
    return sum(row.trajectory.model_tokens for row in batch.rows)


def _metrics(batch: Batch) -> dict[str, float]:
    trajectories = [row.trajectory for row in batch.rows]
    ages = [batch.version - t.oldest_version for t in trajectories if t.oldest_version is not None]
    return {
        "reward_mean": _mean([trajectory.reward for trajectory in trajectories]),
        "staleness_mean": _mean([float(age) for age in ages]),
        "staleness_max": float(max(ages, default=0)),
        "tokens_mean": _mean([float(trajectory.model_tokens) for trajectory in trajectories]),
    }


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
