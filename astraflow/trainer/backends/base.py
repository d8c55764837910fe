"""Interface of training backends."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from astraflow.contract.batches import Batch
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.weights import Probe
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import TensorShapes


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenBase:
    """Weights below a policy's adapters, which never change: published once, as a policy of their own."""

    shapes: TensorShapes
    root_hash: bytes
    """Root hash of the base as published."""
    scale: float
    """Factor of the adapters' product."""
    write: Callable[[StagedVersion], None]
    """Copies the weights into a staging buffer; blocks. Called as the backend's methods are."""


class CapturedState(Protocol):
    """State of a backend in host memory, which later steps do not change. Valid until the next `capture`."""

    @property
    def size_bytes(self) -> int:
        """Size of the state over all ranks."""

    def write(self, folder: Path) -> None:
        """Writes the state into an empty folder, without pickle.

        Runs in another thread while the backend steps, so it must not use the model, the device, or the collectives of
        the step. It may be called again with another folder after an error. The caller flushes the files to disk.
        Raises: OSError, with its errno when the disk is full; Unavailable when a rank is lost.
        """


class Backend(Protocol):
    """Model and optimizer of one policy. All methods block; the trainer's loop calls them in a thread, one at a time.

    Built by `backends.build(spec, model, algorithm, seed=...)`.
    """

    @property
    def is_simulated(self) -> bool:
        """True for simulated backends, which every report states."""

    @property
    def frozen_base(self) -> FrozenBase | None:
        """Base of the versions, which are then adapters; None for versions of the whole model."""

    @property
    def row_limits(self) -> RowLimits:
        """Limits of the rows that it can train, which the trainer states when it attaches; a row beyond them is dropped
        by `step`."""

    @property
    def batching(self) -> BatchingFacts | None:
        """Batching of its passes, and why; None for a backend that computes none."""

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Runs one optimizer step over the whole batch; returns metrics (`loss`, `grad_norm`, `clip_fraction`,
        `entropy`, `ratio_mean`, `mismatch_max` over rows written wholly with the trainer's own version, ...)."""

    @property
    def published_shapes(self) -> TensorShapes:
        """Tensors of every version, in the model's own order: names as in the model's `state_dict`, tied weights once,
        in the published dtype."""

    def snapshot(self, staged: StagedVersion) -> None:
        """Copies the current weights off the device, each tensor directly into its staging buffer.

        Later steps do not affect the copy. The trainer is paused meanwhile, so each tensor is copied only once.
        """

    def probe(self) -> Probe | None:
        """Returns a probe under the current weights, which engines compare their logprobs with; None if unsupported."""

    def capture(self) -> CapturedState:
        """Copies model, optimizer and random state to host memory, for a checkpoint. The trainer is paused meanwhile.

        The memory may be reused: it is called only after the `write` before it has returned.
        """

    def load(self, folder: Path) -> None:
        """Restores the state that a captured state's `write` wrote, bit for bit. Raises: CorruptData, naming the
        file."""
