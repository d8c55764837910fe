"""Memory for whole versions, written again as soon as nobody looks at it any more."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from astraflow.weights.tensors import Buffer

KEPT = 2
"""One version serves while the next one is made: more is never idle."""


@dataclass(slots=True, kw_only=True)
class _Memory:
    owner: Buffer
    lent: Callable[[], Buffer | None]
    """What is lent, as long as somebody views it."""


class Buffers:
    """Lends buffers. A fresh one costs a page fault for every 4 KiB; one used before costs nothing.

    What is lent is an array over memory that stays here; it comes back by itself with the last array that views it,
    whoever holds that: engine, tensor, test. So nothing that is in use is ever written.
    """

    def __init__(self) -> None:
        self._memories: list[_Memory] = []

    def lend(self, size_bytes: int) -> Buffer:
        """Writable, uint8 `[size_bytes]`, with anything in it."""
        free = [memory for memory in self._memories if memory.lent() is None]
        for memory in free:
            if memory.owner.nbytes == size_bytes:
                return _lent(memory)
        self._memories = [memory for memory in self._memories if memory.lent() is not None][-KEPT:]
        memory = _Memory(owner=np.empty(size_bytes, dtype=np.uint8), lent=lambda: None)
        self._memories.append(memory)
        return _lent(memory)


def _lent(memory: _Memory) -> Buffer:
    """A new array whose base is no array, so that every view of it keeps it, and not only what is below it, alive."""
    buffer = np.frombuffer(memory.owner.data, dtype=np.uint8)
    memory.lent = weakref.ref(buffer)
    return buffer
