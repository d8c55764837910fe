"""Where the bytes of a transfer are read from while it is served: immutable, and safe from being pruned meanwhile."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from astraflow.contract.errors import UnknownVersion
from astraflow.weights.bits import Bits


class Source(Protocol):
    """One encoded file, open."""

    def read(self, offset: int, size_bytes: int) -> bytes | memoryview:
        """Bytes from `offset` on, fewer only at the end."""

    def close(self) -> None:
        """Let go of it."""


class FileSource:
    """A file on disk; it stays readable when the store removes its name."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UnknownVersion(f"{path.name} was just removed: plan the transfer again") from None

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes from `offset` on, fewer only at the end."""
        return os.pread(self._descriptor, size_bytes, offset)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class DataSource:
    """Bytes in memory; they stay there as long as somebody reads."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data)

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Bytes from `offset` on, fewer only at the end."""
        return self._view[offset : offset + size_bytes]

    def close(self) -> None:
        """Let go of them."""
        self._view = memoryview(b"")


class BitsSource(DataSource):
    """Bits that the store holds in memory, with the name that others know them by."""

    def __init__(self, bits: Bits, *, on_close: Callable[[], None]) -> None:
        super().__init__(bits.buffer.data)
        self._bits: Bits | None = bits
        self._on_close: Callable[[], None] | None = on_close

    @property
    def is_open(self) -> bool:
        """Whether it may still be read."""
        return self._bits is not None

    def close(self) -> None:
        """Let go of the bits."""
        super().close()
        on_close, self._bits, self._on_close = self._on_close, None, None
        if on_close is not None:
            on_close()
