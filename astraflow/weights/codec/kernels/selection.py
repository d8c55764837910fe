"""Selection between compiled and reference kernels; no other module uses both."""

import importlib.util
import sys
from functools import cache
from threading import Lock

import numpy as np

from astraflow.runtime.logs import get_logger
from astraflow.weights.codec.blocks import apply_block, encode_block
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.codec.kernels.reference import ReferenceKernels
from astraflow.weights.tensors import BITS

log = get_logger()

COMPILED_MIN_BYTES = 16 * 2**20
"""Smaller versions take only milliseconds in numpy, while loading numba takes half a second."""

_REFERENCE = ReferenceKernels()
_compile_lock = Lock()


def kernels_for(size_bytes: int) -> Kernels:
    """Returns the kernels for versions of that size. The first large version of a process waits for compilation."""
    if size_bytes < COMPILED_MIN_BYTES:
        return _REFERENCE
    with _compile_lock:
        return _compiled_or_reference()


@cache
def _compiled_or_reference() -> Kernels:
    """Returns the compiled kernels where available; numpy writes and reads the same bytes."""
    if importlib.util.find_spec("numba") is None or sys.byteorder != "little":
        log.info("numpy_codec_selected", hint="pip install 'astraflow[compiled]' makes it faster")
        return _REFERENCE
    try:
        from astraflow.weights.codec.kernels.compiled import CompiledKernels

        kernels = CompiledKernels()
        _self_test(kernels)
    except Exception as problem:  # any failure of the compiler, its cache or a numba release
        log.warning("codec_not_compiled", problem=str(problem) or repr(problem), instead="numpy")
        return _REFERENCE
    return kernels


def _self_test(kernels: Kernels) -> None:
    """Compiles for two-byte elements, and checks that the kernels agree with numpy on this machine."""
    old = np.arange(2**12).astype(BITS[2]) * 16
    is_changed = (old % 48 == 0) & (old % 2**15 < 2**13)  # only small ones, so that there are several bands
    new = np.where(is_changed, old + old % 5 + 1, old).astype(BITS[2])
    payload, _ = encode_block(old, new, bands=32, kernels=kernels)
    if payload != encode_block(old, new, bands=32, kernels=_REFERENCE)[0]:
        raise ValueError("compiled kernels encode other bytes than numpy")
    apply_block(memoryview(payload), old, kernels=kernels)
    if not np.array_equal(old, new):
        raise ValueError("compiled kernels decode other bits than numpy")
