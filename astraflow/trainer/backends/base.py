"""The port every training backend fits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from astraflow.contract.batches import Batch
from astraflow.contract.weights import Probe
from astraflow.weights.drafts import Draft
from astraflow.weights.tensors import TensorShapes


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

    @property
    def published(self) -> TensorShapes:
        """What every version has, in the model's own order: names as in the model's `state_dict`, tied weights once, in
        the dtype they are published in."""

    def snapshot(self, draft: Draft) -> None:
        """Copy the weights now off the device, each tensor to its place: what the next step does cannot change them.

        The trainer stands still meanwhile, so each is copied once, straight there.
        """

    def probe(self) -> Probe | None:
        """What an engine's logprobs are compared with, under the weights now."""

    def save(self, folder: Path) -> None:
        """Write model, optimizer and random state into an empty folder; no pickle."""

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit. Raises: CorruptData, naming the file."""
