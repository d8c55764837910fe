"""Atomic files: written completely or not at all, also across crashes."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from astraflow.contract.errors import StorageFull
from astraflow.wire.errors import is_disk_full

TEMPORARY_SUFFIX = ".part"


class AtomicFile:
    """File in progress, under a temporary name until `commit` renames it.

    Thread-safe; `discard` waits for a write in progress. A crash leaves the temporary file, which the service that
    owns the folder removes at startup.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid4().hex}{TEMPORARY_SUFFIX}"
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._is_closed = False

    def write(self, data: bytes | memoryview) -> None:
        """Appends to the file. Raises: StorageFull."""
        view = memoryview(data)
        with self._lock, translate_full_disk(self.path):
            descriptor = self._open()
            while len(view):
                view = view[os.write(descriptor, view) :]

    def commit(self, path: Path) -> None:
        """Renames to the final path in the same folder, replacing an existing file; durable on return.

        Raises: StorageFull; the path is then unchanged.
        """
        with self._lock, translate_full_disk(path):
            os.fsync(self._open())
            self._close()
            self.path.replace(path)
            sync_folder(path.parent)

    def discard(self) -> None:
        """Removes the temporary file, unless it was committed."""
        with self._lock:
            self._close()
            self.path.unlink(missing_ok=True)

    def _open(self) -> int:
        if self._is_closed:
            raise ValueError(f"cannot write to {str(self.path)!r}: it is closed")
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return self._descriptor

    def _close(self) -> None:
        self._is_closed = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Creates or replaces a file durably and atomically. Raises: StorageFull; the file is then unchanged."""
    file = AtomicFile(path.parent)
    try:
        file.write(data)
        file.commit(path)
    finally:
        file.discard()


def sync_folder(folder: Path) -> None:
    """Flushes the names added to or removed from `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translate_full_disk(path: Path) -> Iterator[None]:
    """Converts the operating system's error for a full disk to StorageFull."""
    try:
        yield
    except OSError as problem:
        if not is_disk_full(problem):
            raise
        raise StorageFull(
            f"cannot write to {str(path.parent)!r}: the disk is full; free some space (no published version was lost)",
            code="storage.disk_full",
        ) from problem
