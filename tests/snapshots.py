"""Published weights of a backend, as arrays."""

from dataclasses import dataclass

from astraflow.contract.weights import Probe
from astraflow.trainer.backends.base import Backend
from astraflow.weights.publish.staging_buffers import StagedVersion, tensor_views
from astraflow.weights.tensors import SnapshotTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights and the probe under them."""

    tensors: SnapshotTensors
    probe: Probe | None


def snapshot_of(backend: Backend) -> Snapshot:
    """Copies the current weights."""
    published = backend.published_shapes
    draft = StagedVersion.private(published)
    backend.snapshot(draft)
    places = tensor_views(draft.specs, draft.buffer.bits)
    return Snapshot(tensors={name: (*published[name], places[name]) for name in published}, probe=backend.probe())
