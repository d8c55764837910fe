"""One encoded file while it arrives: in ranges, over several connections at once, every byte straight to its place."""

import math
from dataclasses import dataclass

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Chunk, Transfer
from astraflow.weights.chunks import CHUNK_BYTES, check_chunk, check_file
from astraflow.weights.tensors import Buffer, frozen

SMALLEST_SHARE_BYTES = 4 * CHUNK_BYTES
"""A range is not split into smaller ones: asking for one costs a round trip."""


@dataclass(slots=True, kw_only=True, eq=False)
class Range:
    """A stretch of a file: bytes before `position` are there, those from there to `end` are missing."""

    position: int
    end: int
    refusals: int = 0
    """Bad chunks in a row at `position`."""

    @property
    def missing_bytes(self) -> int:
        """What is still to come."""
        return self.end - self.position


class Assembly:
    """The ranges of a file, each with at most one connection at a time.

        waiting ──take──► taken ──add, add, ...──► whole
           ▲                │
           └────release─────┘ broken off: nothing of what came is asked for again

    When none waits any more, `take` cuts the taken range that misses most in two, so that no connection idles while
    another one has much to do. Whoever fetches a range looks at its `end` after every chunk.
    """

    def __init__(self, transfer: Transfer, buffer: Buffer | None = None, *, ways: int = 1) -> None:
        """buffer: where the file goes, uint8 `[transfer.size_bytes]`. ways: ranges to begin with, at most."""
        self.transfer = transfer
        self._buffer = np.empty(transfer.size_bytes, dtype=np.uint8) if buffer is None else buffer
        self._waiting = _ranges(transfer.size_bytes, ways=ways)
        self._taken: list[Range] = []
        self.received = 0

    @property
    def is_complete(self) -> bool:
        """Whether every byte is there."""
        return self.received == self.transfer.size_bytes

    def take(self) -> Range | None:
        """A range to be fetched, to be given back by `release`; None when the taken ones are all there is."""
        found = self._waiting.pop(0) if self._waiting else self._split()
        if found is not None:
            self._taken.append(found)
        return found

    def add(self, part: Range, chunk: Chunk) -> None:
        """Take the next chunk of a taken range; what goes beyond its end is left out, another connection brings it.

        Raises: CorruptData; what was received before stays good.
        """
        try:
            check_chunk(chunk, expected_offset=part.position, end=self.transfer.size_bytes)
        except CorruptData:
            part.refusals += 1
            raise
        size_bytes = min(len(chunk.data), part.missing_bytes)
        data = np.frombuffer(chunk.data, dtype=np.uint8, count=size_bytes)
        self._buffer[part.position : part.position + size_bytes] = data
        part.position += size_bytes
        part.refusals = 0
        self.received += size_bytes

    def release(self, part: Range) -> None:
        """A taken range is whole, or its connection broke."""
        self._taken.remove(part)
        if part.missing_bytes:
            self._waiting.append(part)

    def finish(self) -> Buffer:
        """The whole file, proven against the transfer's hash; read-only. Raises: CorruptData."""
        if not self.is_complete:
            raise CorruptData(f"{self.received} of {self.transfer.size_bytes} bytes have arrived")
        check_file(self.transfer, self._buffer)
        return frozen(self._buffer)

    def _split(self) -> Range | None:
        largest = max(self._taken, key=lambda part: part.missing_bytes, default=None)
        if largest is None or largest.missing_bytes < 2 * SMALLEST_SHARE_BYTES:
            return None
        middle = largest.position + largest.missing_bytes // 2
        second = Range(position=middle, end=largest.end)
        largest.end = middle
        return second


def _ranges(size_bytes: int, *, ways: int) -> list[Range]:
    """Nearly equal ranges that begin on borders of chunks; none for an empty file.

    >>> [(part.position >> 20, part.end >> 20) for part in _ranges(9 << 20, ways=8)]
    [(0, 5), (5, 9)]
    """
    parts = max(1, min(ways, round(size_bytes / SMALLEST_SHARE_BYTES)))
    chunks = math.ceil(size_bytes / parts / CHUNK_BYTES)
    starts = range(0, size_bytes, max(1, chunks) * CHUNK_BYTES)
    return [Range(position=start, end=min(start + chunks * CHUNK_BYTES, size_bytes)) for start in starts]
