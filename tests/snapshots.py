"""What a backend publishes, as arrays."""

from dataclasses import dataclass

import numpy as np

from astraflow.contract.weights import Probe
from astraflow.trainer.backends.base import Backend
from astraflow.weights.tensors import BITS, SnapshotTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights and the probe under them."""

    tensors: SnapshotTensors
    probe: Probe | None


def snapshot_of(backend: Backend) -> Snapshot:
    """The weights now, in memory of their own."""
    published = backend.published
    places = {
        name: np.empty(int(np.prod(shape, dtype=np.int64)), dtype=BITS[dtype.size_bytes])
        for name, (dtype, shape) in published.items()
    }
    backend.snapshot(places)
    tensors = {name: (*published[name], places[name]) for name in published}
    return Snapshot(tensors=tensors, probe=backend.probe())
