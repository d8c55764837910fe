"""Pool of buffers for whole versions, reused as soon as they are unreferenced."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from astraflow.weights.tensors import Buffer

MAX_POOLED_BUFFERS = 2
"""Buffers for reuse: one version is served while the next is written."""


@dataclass(slots=True, kw_only=True)
class _PooledBuffer:
    owner: Buffer
    view: Callable[[], Buffer | None]
    """Returns the array in use; None once all its views are gone."""


class BufferPool:
    """Provides buffers. A new buffer costs a page fault for every 4 KiB; a reused one costs nothing.

    `acquire` returns an array over pooled memory. The memory is free again when the last view of that array is gone
    (in an engine, a tensor, a test), so memory in use is never overwritten.
    """

    def __init__(self) -> None:
        self._pooled: list[_PooledBuffer] = []

    def acquire(self, size_bytes: int) -> Buffer:
        """Returns a writable uint8 array `[size_bytes]` with undefined content."""
        free = [memory for memory in self._pooled if memory.view() is None]
        for memory in free:
            if memory.owner.nbytes == size_bytes:
                return _new_view(memory)
        self._pooled = [memory for memory in self._pooled if memory.view() is not None][-MAX_POOLED_BUFFERS:]
        memory = _PooledBuffer(owner=np.empty(size_bytes, dtype=np.uint8), view=lambda: None)
        self._pooled.append(memory)
        return _new_view(memory)


def _new_view(memory: _PooledBuffer) -> Buffer:
    """Returns an array whose base is no array, so that every view keeps it alive, and not only the memory below it."""
    buffer = np.frombuffer(memory.owner.data, dtype=np.uint8)
    memory.view = weakref.ref(buffer)
    return buffer
