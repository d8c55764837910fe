"""Readers of a transfer's bytes while it is served: immutable, and valid when the store removes the file meanwhile."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from astraflow.contract.errors import UnknownVersion
from astraflow.weights.shared_memory import VersionBuffer


class FileReader(Protocol):
    """One open encoded file."""

    def read(self, offset: int, size_bytes: int) -> bytes | memoryview:
        """Returns bytes from `offset` on, fewer only at the end."""

    def close(self) -> None:
        """Releases the file."""


class DiskFileReader:
    """File on disk; it stays readable when the store removes its name."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UnknownVersion(
                f"cannot open {path.name!r}: the store has removed it; plan the transfer again",
                code="weights.file_removed",
            ) from None

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Returns bytes from `offset` on, fewer only at the end."""
        return os.pread(self._descriptor, size_bytes, offset)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


class MemoryFileReader:
    """Bytes in memory; the reader keeps them alive."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data)

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Returns bytes from `offset` on, fewer only at the end."""
        return self._view[offset : offset + size_bytes]

    def close(self) -> None:
        """Releases the bytes."""
        self._view = memoryview(b"")


class VersionBufferReader(MemoryFileReader):
    """Version buffer of the store, kept alive and usable by its shared-memory name."""

    def __init__(self, bits: VersionBuffer, *, on_close: Callable[[], None]) -> None:
        super().__init__(bits.buffer.data)
        self._bits: VersionBuffer | None = bits
        self._on_close: Callable[[], None] | None = on_close

    @property
    def is_open(self) -> bool:
        """True until the reader is closed."""
        return self._bits is not None

    def close(self) -> None:
        """Releases the version buffer."""
        super().close()
        on_close, self._bits, self._on_close = self._on_close, None, None
        if on_close is not None:
            on_close()
