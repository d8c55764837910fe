"""What a backend publishes, as arrays."""

from dataclasses import dataclass

from astraflow.contract.weights import Probe
from astraflow.trainer.backends.base import Backend
from astraflow.weights.drafts import Draft, DraftBuffer, places_in
from astraflow.weights.tensors import SnapshotTensors, TensorShapes, lay_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Weights and the probe under them."""

    tensors: SnapshotTensors
    probe: Probe | None


def snapshot_of(backend: Backend) -> Snapshot:
    """The weights now, in memory of their own."""
    published = backend.published
    draft = draft_of(published)
    backend.snapshot(draft)
    places = places_in(draft.specs, draft.buffer.bits)
    return Snapshot(tensors={name: (*published[name], places[name]) for name in published}, probe=backend.probe())


def draft_of(shapes: TensorShapes) -> Draft:
    """A draft in ordinary memory."""
    specs = lay_out(shapes)
    return Draft(specs, DraftBuffer(sum(spec.size_bytes for spec in specs), None))
