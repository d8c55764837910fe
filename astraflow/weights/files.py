"""Files that are there whole or not at all, whatever happens while they are written."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from astraflow.contract.errors import StorageFull
from astraflow.wire.errors import is_disk_full

PART_SUFFIX = ".part"


class PartFile:
    """A file while it is written, under a name of its own until `become` gives it its final one.

    Any thread may call it; `discard` waits for a write in progress. After a crash a part is rubbish: whoever owns the
    folder removes parts at its start.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid4().hex}{PART_SUFFIX}"
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._is_over = False

    def write(self, data: bytes | memoryview) -> None:
        """Add to the end. Raises: StorageFull."""
        view = memoryview(data)
        with self._lock, noticing_full_disk(self.path):
            descriptor = self._opened()
            while len(view):
                view = view[os.write(descriptor, view) :]

    def become(self, path: Path) -> None:
        """Take the final name, in the same folder, replacing what has it; durable when this returns.

        Raises: StorageFull; nothing has the name then.
        """
        with self._lock, noticing_full_disk(path):
            os.fsync(self._opened())
            self._close()
            self.path.replace(path)
            sync_folder(path.parent)

    def discard(self) -> None:
        """Remove the part, if it did not become a file."""
        with self._lock:
            self._close()
            self.path.unlink(missing_ok=True)

    def _opened(self) -> int:
        if self._is_over:
            raise ValueError(f"{self.path} is closed")
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return self._descriptor

    def _close(self) -> None:
        self._is_over = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Make or replace a file, durably and at once. Raises: StorageFull; then nothing has changed."""
    part = PartFile(path.parent)
    try:
        part.write(data)
        part.become(path)
    finally:
        part.discard()


def sync_folder(folder: Path) -> None:
    """Names given or removed in `folder` are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def noticing_full_disk(path: Path) -> Iterator[None]:
    """Turns the operating system's word for a full disk into ours."""
    try:
        yield
    except OSError as problem:
        if not is_disk_full(problem):
            raise
        raise StorageFull(
            f"the disk that holds {path.parent} is full: free some space; nothing published was lost"
        ) from problem
