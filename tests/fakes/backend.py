"""A backend whose weights are the list of batches it was trained on."""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from blake3 import blake3

from astraflow.contract.batches import Batch
from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Dtype
from astraflow.weights.drafts import Draft
from astraflow.weights.tensors import TensorShapes


class RecordingBackend:
    """Publishes bits that tell what it was trained on, and by which incarnation.

    As on an accelerator, a step that is done again by another process does not come out the same bit for bit.
    """

    is_simulated = True

    def __init__(self) -> None:
        self.steps: list[str] = []
        """`batch by incarnation`, in order."""
        self._incarnation = secrets.token_hex(4)

    @property
    def trained(self) -> list[str]:
        """The batches, in order."""
        return [step.partition(" ")[0] for step in self.steps]

    def step(self, batch: Batch) -> Mapping[str, float]:
        self.steps.append(f"{batch.id} {self._incarnation}")
        return {"loss": float(len(self.steps))}

    @property
    def published(self) -> TensorShapes:
        return {"steps": (Dtype.FLOAT32, (8,))}

    def snapshot(self, draft: Draft) -> None:
        with draft.writing() as places:
            places["steps"][:] = bits_of(self.steps)

    def probe(self) -> None:
        return None

    def save(self, folder: Path) -> None:
        (folder / "steps.json").write_text(json.dumps(self.steps))

    def load(self, folder: Path) -> None:
        try:
            self.steps = json.loads((folder / "steps.json").read_text())
        except (OSError, ValueError) as problem:
            raise CorruptData(f"{folder} is not a recording: {problem}") from problem


def bits_of(steps: list[str]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """What is published after these steps."""
    return np.frombuffer(blake3(json.dumps(steps).encode()).digest(), dtype="<u4")
