"""Interface of text embedders, and their registry."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from astraflow.runtime.plugins import Registry

Vectors = npt.NDArray[np.float32]


class TextKind(Enum):
    """Part that a text plays in a search; some models expect another prefix for each."""

    QUERY = "query"
    DOCUMENT = "document"


class Embedder(Protocol):
    """Turns texts into vectors whose inner product says how close their meanings are. Built by
    `embedders.build(spec)`.

    A plugin is a class in a module that registers itself; list the module under the entry point group
    `astraflow.embedders`.
    """

    def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Returns a vector of length 1 for each text: float32 `[texts, width]`. Blocks; one call at a time."""


embedders: Registry[Embedder] = Registry("embedder", built_in={"huggingface": "astraflow.models.huggingface_embedder"})
