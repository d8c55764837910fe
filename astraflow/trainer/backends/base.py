"""The port every training backend fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from astraflow.contract.batches import Batch
from astraflow.contract.weights import Dtype, Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights as published, copied out of the device: nothing the next step does can change them.

    tensors: name -> (dtype, shape, bits), bits a contiguous unsigned-integer array of the dtype's width, flat. Names
    are those of the model's `state_dict`, tied weights once. probe: what an engine's logprobs are compared with.
    """

    tensors: Mapping[str, tuple[Dtype, tuple[int, ...], npt.NDArray[np.unsignedinteger]]]
    probe: Probe | None


class Backend(Protocol):
    """Holds a model and its optimizer. All methods block; the trainer's loop calls them in a thread, one at a time.

    Built by `backends.build(spec, model, algorithm, seed=...)`.
    """

    @property
    def is_simulated(self) -> bool:
        """True for stand-ins, which say so in every report."""

    def step(self, batch: Batch) -> Mapping[str, float]:
        """One optimizer step over the whole batch; returns metrics (`loss`, `grad_norm`, `clip_fraction`, `entropy`,
        `ratio_mean`, `logprob_gap` over rows written wholly with the trainer's own version, ...)."""

    def snapshot(self) -> Snapshot:
        """The weights now, in the dtype they are published in."""

    def save(self, folder: Path) -> None:
        """Write model, optimizer and random state into an empty folder; no pickle."""

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit. Raises: CorruptData, naming the file."""
