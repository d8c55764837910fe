"""Memory for texts of jobs in the fork server, and the outputs in it."""

import mmap
import os

CHUNK_BYTES = 2**16
"""Bytes that are read at once."""


class Buffer:
    """Memory that forks of this process do not get. What jobs print and consist of passes through it."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(b"")
        self.hold(size)

    def hold(self, size: int) -> None:
        """Makes place for so many bytes, and forgets the content where there was less."""
        if size > len(self.view):
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapping.madvise(mmap.MADV_DONTFORK)
            self.view = memoryview(mapping)


class Output:
    """Collected output of a stream."""

    def __init__(self, descriptor: int, limit: int, buffer: Buffer) -> None:
        """buffer: with place for the limit and a chunk."""
        self.descriptor = descriptor
        self.size = 0
        self.is_cut = False
        self.is_open = True
        self._limit = limit
        self._buffer = buffer

    @property
    def content(self) -> memoryview:
        """What was collected."""
        return self._buffer.view[: self.size]

    def read(self) -> bool:
        """Reads what is there; discards what exceeds the limit. Returns whether there was anything."""
        try:
            count = os.readv(self.descriptor, [self._buffer.view[self.size : self.size + CHUNK_BYTES]])
        except BlockingIOError:
            return False
        self.is_open = count > 0
        self.is_cut = self.is_cut or self.size + count > self._limit
        self.size = min(self.size + count, self._limit)
        return self.is_open
