"""Bits that are read in full, which stay for a while when a newer version replaces them."""

import threading
import weakref
from dataclasses import dataclass, field

from astraflow.contract.weights import Transfer
from astraflow.runtime.clock import Clock
from astraflow.weights.bits import Bits
from astraflow.weights.sources import BitsSource

MAX_LINGERING = 2
"""Versions besides the newest: each takes as much memory as a model."""


@dataclass(slots=True)
class _Read:
    bits: Bits
    left_at: float
    """When it was last known to be read."""
    readers: "weakref.WeakSet[BitsSource]" = field(default_factory=weakref.WeakSet)
    """Weakly, for one that was opened for a call that had just been cancelled, and is never closed."""


class Lingering:
    """Who reads which version from memory. Any thread may call it.

    A reader opens a file anew for each range of it and after each break. What was open within the last `linger_s` can
    therefore be opened again, though the store's newest version is another one by then.
    """

    def __init__(self, linger_s: float, clock: Clock) -> None:
        self._linger_s = linger_s
        self._clock = clock
        self._read: dict[Transfer, _Read] = {}
        self._changing = threading.Lock()

    def open(self, transfer: Transfer, bits: Bits | None = None) -> BitsSource | None:
        """Read a version: `bits`, or those that linger; None when there are none."""
        self.prune(newest=transfer if bits else None)
        with self._changing:
            read = self._read.get(transfer)
            if read is None and bits is not None:
                read = self._read[transfer] = _Read(bits=bits, left_at=self._clock.now())
            if read is None:
                return None
            source = BitsSource(read.bits, on_close=lambda: self._close(transfer))
            read.readers.add(source)
            return source

    def prune(self, *, newest: Transfer | None) -> None:
        """Let go of what nobody reads and nobody is expected to; the newest version is the store's to keep."""
        now = self._clock.now()
        with self._changing:
            for transfer, read in list(self._read.items()):
                if any(source.is_open for source in read.readers):
                    read.left_at = now
                elif now - read.left_at >= self._linger_s:
                    del self._read[transfer]
            older = [transfer for transfer in self._read if transfer != newest]
            for transfer in older[: max(len(older) - MAX_LINGERING, 0)]:
                del self._read[transfer]

    def _close(self, transfer: Transfer) -> None:
        with self._changing:
            if transfer in self._read:
                self._read[transfer].left_at = self._clock.now()
        if not self._linger_s:
            self.prune(newest=None)
