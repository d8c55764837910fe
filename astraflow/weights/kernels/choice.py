"""Which kernels code a version: the only place that knows of both."""

import importlib.util
import sys
from functools import cache
from threading import Lock

import numpy as np

from astraflow.runtime.logs import get_logger
from astraflow.weights.blocks import apply_block, encode_block
from astraflow.weights.kernels.base import Kernels
from astraflow.weights.kernels.reference import ReferenceKernels
from astraflow.weights.tensors import BITS

log = get_logger()

COMPILED_FROM_BYTES = 16 * 2**20
"""Smaller versions are coded in some milliseconds as it is, and numba takes half a second to be there."""

_REFERENCE = ReferenceKernels()
_compiling = Lock()


def kernels_for(size_bytes: int) -> Kernels:
    """Kernels for versions of that size. The first large one of a process waits until they are compiled."""
    if size_bytes < COMPILED_FROM_BYTES:
        return _REFERENCE
    with _compiling:
        return _for_large_versions()


@cache
def _for_large_versions() -> Kernels:
    """The compiled ones where they can be had; numpy makes and reads the same bytes."""
    if importlib.util.find_spec("numba") is None or sys.byteorder != "little":
        log.info("codec_runs_in_numpy", hint="pip install 'astraflow[compiled]' makes it faster")
        return _REFERENCE
    try:
        from astraflow.weights.kernels.compiled import CompiledKernels

        kernels = CompiledKernels()
        _try(kernels)
    except Exception as problem:  # whatever a compiler, its cache or a release of numba may fail with
        log.warning("codec_is_not_compiled", problem=str(problem) or repr(problem), instead="numpy")
        return _REFERENCE
    return kernels


def _try(kernels: Kernels) -> None:
    """Compile for elements of two bytes, and be sure that they do what numpy does here."""
    old = np.arange(2**12).astype(BITS[2]) * 16
    is_changed = (old % 48 == 0) & (old % 2**15 < 2**13)  # small ones only, so that there are bands
    new = np.where(is_changed, old + old % 5 + 1, old).astype(BITS[2])
    payload, _ = encode_block(old, new, bands=32, kernels=kernels)
    if payload != encode_block(old, new, bands=32, kernels=_REFERENCE)[0]:
        raise ValueError("compiled kernels make other bytes than numpy")
    apply_block(memoryview(payload), old, kernels=kernels)
    if not np.array_equal(old, new):
        raise ValueError("compiled kernels read other bits than numpy")
