"""Assembly of one encoded file from ranges that arrive over several connections, each byte at its final position."""

import math
from dataclasses import dataclass

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Chunk, Transfer
from astraflow.weights.codec.chunks import CHUNK_BYTES, check_chunk, check_file
from astraflow.weights.tensors import Buffer, frozen

MIN_RANGE_BYTES = 4 * CHUNK_BYTES
"""Ranges are not split into smaller ranges, because each request costs a round trip."""


@dataclass(slots=True, kw_only=True, eq=False)
class ByteRange:
    """Range of a file: bytes before `position` have arrived, bytes from there to `end` are missing."""

    position: int
    end: int
    refusals: int = 0
    """Consecutive chunks with errors at `position`."""

    @property
    def missing_bytes(self) -> int:
        """Bytes that have not arrived."""
        return self.end - self.position


class Assembly:
    """Ranges of a file, each with at most one connection at a time.

        pending ──next_range──► active ──add, add, ...──► complete
           ▲                       │
           └────────release────────┘ interrupted: received bytes are not requested again

    When no range is pending, `next_range` splits the active range with the most missing bytes, so that no connection
    idles while another has much to do. The fetcher of a range checks its `end` after every chunk.
    """

    def __init__(self, transfer: Transfer, buffer: Buffer | None = None, *, max_ranges: int = 1) -> None:
        """buffer: receives the file, uint8 `[transfer.size_bytes]`. max_ranges: upper bound of the initial ranges."""
        self.transfer = transfer
        self._buffer = np.empty(transfer.size_bytes, dtype=np.uint8) if buffer is None else buffer
        self._pending = _ranges(transfer.size_bytes, max_ranges=max_ranges)
        self._active: list[ByteRange] = []
        self.received = 0

    @property
    def is_complete(self) -> bool:
        """True when every byte has arrived."""
        return self.received == self.transfer.size_bytes

    def next_range(self) -> ByteRange | None:
        """Returns a range to fetch, to be returned by `release`; None when no work is left to hand out."""
        part = self._pending.pop(0) if self._pending else self._split()
        if part is not None:
            self._active.append(part)
        return part

    def add(self, part: ByteRange, chunk: Chunk) -> None:
        """Stores the next chunk of an active range; bytes beyond its end are dropped, another connection fetches them.

        Raises: CorruptData; bytes received earlier stay valid.
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

    def release(self, part: ByteRange) -> None:
        """Returns a range that is complete, or whose connection broke."""
        self._active.remove(part)
        if part.missing_bytes:
            self._pending.append(part)

    def finish(self) -> Buffer:
        """Returns the whole file, verified against the transfer's hash; read-only. Raises: CorruptData."""
        if not self.is_complete:
            raise CorruptData(
                f"cannot finish the transfer: {self.received} of {self.transfer.size_bytes} bytes have arrived; fetch "
                "the missing ranges",
                code="weights.incomplete_file",
            )
        check_file(self.transfer, self._buffer)
        return frozen(self._buffer)

    def _split(self) -> ByteRange | None:
        largest = max(self._active, key=lambda part: part.missing_bytes, default=None)
        if largest is None or largest.missing_bytes < 2 * MIN_RANGE_BYTES:
            return None
        middle = largest.position + largest.missing_bytes // 2
        second = ByteRange(position=middle, end=largest.end)
        largest.end = middle
        return second


def _ranges(size_bytes: int, *, max_ranges: int) -> list[ByteRange]:
    """Returns nearly equal ranges that begin at chunk boundaries; none for an empty file.

    >>> [(part.position >> 20, part.end >> 20) for part in _ranges(9 << 20, max_ranges=8)]
    [(0, 5), (5, 9)]
    """
    parts = max(1, min(max_ranges, round(size_bytes / MIN_RANGE_BYTES)))
    chunks = math.ceil(size_bytes / parts / CHUNK_BYTES)
    starts = range(0, size_bytes, max(1, chunks) * CHUNK_BYTES)
    return [ByteRange(position=start, end=min(start + chunks * CHUNK_BYTES, size_bytes)) for start in starts]
