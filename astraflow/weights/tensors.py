"""The flat layout of a version: named tensors in a fixed order, as bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.ids import Version
from astraflow.contract.weights import Manifest

Buffer: TypeAlias = npt.NDArray[np.uint8]
"""Flat little-endian bits of all tensors of a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedWeights:
    """A version whose every byte was proven against its manifest: the only form in which an engine gets weights.

    buffer: uint8 `[manifest.size_bytes]`, read-only. changes: for each tensor name, the int64 element positions that differ
    from version `base`, so that an engine that serves `base` patches in place; None after a full transfer.
    """

    manifest: Manifest
    buffer: Buffer
    base: Version | None = None
    changes: Mapping[str, npt.NDArray[np.int64]] | None = None
