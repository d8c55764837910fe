"""Published weights of a backend, as arrays."""

from dataclasses import dataclass

from astraflow.contract.weights import Probe
from astraflow.trainer.backends.base import Backend
from astraflow.weights.publish.staging_buffers import StagedVersion, StagingBuffer, tensor_views
from astraflow.weights.tensors import SnapshotTensors, TensorShapes, lay_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights and the probe under them."""

    tensors: SnapshotTensors
    probe: Probe | None


def snapshot_of(backend: Backend) -> Snapshot:
    """Copies the current weights."""
    published = backend.published_shapes
    draft = draft_of(published)
    backend.snapshot(draft)
    places = tensor_views(draft.specs, draft.buffer.bits)
    return Snapshot(tensors={name: (*published[name], places[name]) for name in published}, probe=backend.probe())


def draft_of(shapes: TensorShapes) -> StagedVersion:
    """Returns a staging buffer in ordinary memory."""
    specs = lay_out(shapes)
    return StagedVersion(specs, StagingBuffer(sum(spec.size_bytes for spec in specs), None))
