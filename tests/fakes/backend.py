"""A backend whose weights are the list of batches it was trained on."""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from blake3 import blake3

from astraflow.contract.batches import Batch
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import CorruptData
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.weights import Dtype
from astraflow.weights.publish.staging_buffers import StagedVersion
from astraflow.weights.tensors import TensorShapes


class RecordingBackend:
    """Publishes bits that encode the batches it was trained on and its incarnation.

    As on an accelerator, a step that another process repeats does not give the same result bit for bit.
    """

    is_simulated = True
    frozen_base = None
    row_limits = RowLimits()
    batching: BatchingFacts | None = None

    def __init__(self) -> None:
        self.steps: list[str] = []
        """`batch by incarnation`, in training order."""
        self._incarnation = secrets.token_hex(4)

    @property
    def trained(self) -> list[str]:
        """Batches in training order."""
        return [step.partition(" ")[0] for step in self.steps]

    def step(self, batch: Batch) -> Mapping[str, float]:
        self.steps.append(f"{batch.id} {self._incarnation}")
        return {"loss": float(len(self.steps))}

    @property
    def published_shapes(self) -> TensorShapes:
        return {"steps": (Dtype.FLOAT32, (8,))}

    def snapshot(self, staged: StagedVersion) -> None:
        with staged.open_for_writing() as views:
            views["steps"][:] = bits_of(self.steps)

    def probe(self) -> None:
        return None

    def capture(self) -> "RecordedState":
        return RecordedState(list(self.steps))

    def load(self, folder: Path) -> None:
        try:
            self.steps = json.loads((folder / "steps.json").read_text())
        except (OSError, ValueError) as problem:
            raise CorruptData(f"{folder} is not a recording: {problem}") from problem


class RecordedState:
    """Captured state: the steps."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps
        self.size_bytes = 32

    def write(self, folder: Path) -> None:
        (folder / "steps.json").write_text(json.dumps(self.steps))


def bits_of(steps: list[str]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Returns the bits that the backend publishes after these steps."""
    return np.frombuffer(blake3(json.dumps(steps).encode()).digest(), dtype="<u4")
