"""Full versions in shared memory, which other processes on the same host map instead of receiving a copy.

A buffer is a file in `/dev/shm`, or in the folder that ASTRAFLOW_SHARED_FOLDER names. Containers of different trust
share that folder, writable for publishers and stores and read-only for nodes, so that no node can alter what others
have verified. Processes of one user without such a boundary can alter each other's buffers and memory.

Each user, including the writer, holds a shared lock on a buffer, which ends with the last use of the mapped array, or
with the process. So readers need no registration: a writer may overwrite a buffer, and any process of the same user may
remove it, once it can lock the buffer exclusively.
"""

import fcntl
import mmap
import os
import stat
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

import numpy as np

from astraflow.contract.errors import InvalidInput, StorageFull, UnknownVersion
from astraflow.contract.weights import SharedFile
from astraflow.runtime.locks import try_lock
from astraflow.runtime.logs import get_logger
from astraflow.weights.atomic_files import translate_full_disk
from astraflow.weights.tensors import Buffer, frozen

log = get_logger()

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 (files are made with O_EXCL and a random name, and opened without links)
"""Shared memory of this process and the engine servers that it starts."""
SHARED_FOLDER = Path(os.environ.get("ASTRAFLOW_SHARED_FOLDER") or MEMORY_FOLDER)
"""Shared memory of versions that other services map."""
PREFIX = "astraflow-"

CREATION_GRACE_S = 60.0
"""Age from which a buffer without a size is known to be left over from a process killed during its creation."""


@cache
def host_id() -> str:
    """Returns an id shared by processes that see the same shared memory: one kernel boot, one folder."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{SHARED_FOLDER.stat().st_dev}"


def is_on_this_host(file: SharedFile) -> bool:
    """Returns whether this process can see the file, if it still exists."""
    return file.host == host_id()


class SharedBuffer:
    """Buffer that this process writes and others map by its `file`.

        created ──► writing ──► shared ──reclaim, no readers──► writing ──► ...
                                   └──────────── unlink ──► freed with its last reader

    Must not be written while others may read: call `reclaim` first.
    """

    def __init__(self, size_bytes: int, *, folder: Path | None = None) -> None:
        """size_bytes: at least 1. folder: that of versions if absent.

        Raises: StorageFull when shared memory has no room for the whole buffer; OSError when the folder is not
        writable.
        """
        path = (folder or SHARED_FOLDER) / f"{PREFIX}{uuid4().hex}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with translate_full_disk(path):
                os.posix_fallocate(descriptor, 0, size_bytes)  # now, because full memory later raises a fatal signal
            self.buffer: Buffer = np.frombuffer(mmap.mmap(descriptor, size_bytes), dtype=np.uint8)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        self._descriptor = descriptor
        self._path = path
        self.file = SharedFile(host=host_id(), path=str(path), size_bytes=size_bytes)

    def reclaim(self) -> bool:
        """Returns whether the buffer has no other readers and may be written; blocks mapping until `share`."""
        is_alone = try_lock(self._descriptor, fcntl.LOCK_EX)
        if not is_alone:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # the failed attempt has released the shared lock
        return is_alone

    def share(self) -> None:
        """Lets others map the buffer; it must not be written again before `reclaim`."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def unlink(self) -> None:
        """Removes the file name; existing mappings, here and elsewhere, stay usable."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def map_read_only(file: SharedFile) -> Buffer:
    """Maps a shared file read-only, without a copy; the writer does not change it while the array is used.

    The path comes from a peer: only an AstraFlow buffer of the same user in shared memory is opened. Callers verify its
    content by hash. Raises: UnknownVersion when it is gone or being written; InvalidInput when it is no such
    buffer.
    """
    descriptor = _open_checked(file, os.O_RDONLY)
    try:
        if not try_lock(descriptor, fcntl.LOCK_SH):
            raise UnknownVersion(
                f"cannot map the shared buffer {Path(file.path).name!r}: it is being overwritten; plan the transfer "
                "again",
                code="weights.shared_buffer_gone",
            )
        mapping = mmap.mmap(descriptor, file.size_bytes, prot=mmap.PROT_READ)  # duplicates the file, so keeps the lock
    finally:
        os.close(descriptor)
    return frozen(np.frombuffer(mapping, dtype=np.uint8))


def map_writable(file: SharedFile) -> Buffer:
    """Maps a buffer for writing together with its creator, which holds the lock and coordinates the writes.

    Raises: as `map_read_only`.
    """
    descriptor = _open_checked(file, os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(descriptor, file.size_bytes), dtype=np.uint8)
    finally:
        os.close(descriptor)


def _open_checked(file: SharedFile, access: int) -> int:
    path = Path(file.path)
    if not is_on_this_host(file) or path.parent != SHARED_FOLDER or not path.name.startswith(PREFIX):
        raise InvalidInput(
            f"cannot map {file.path!r}: it is not a shared buffer on this host; fetch the version instead",
            code="weights.not_a_shared_buffer",
        )
    try:
        descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UnknownVersion(
            f"cannot map the shared buffer {path.name!r}: it is gone; plan the transfer again",
            code="weights.shared_buffer_gone",
        ) from None
    except OSError as problem:
        raise InvalidInput(
            f"cannot map the shared buffer {path.name!r}: {problem.strerror}; fetch the version instead",
            code="weights.not_a_shared_buffer",
        ) from problem
    status = os.fstat(descriptor)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & 0o777 == 0o600
    if not is_ours or status.st_size != file.size_bytes or file.size_bytes < 1:
        os.close(descriptor)
        raise InvalidInput(
            f"cannot map the shared buffer {path.name!r}: its owner, mode or size differs; fetch the version instead",
            code="weights.not_a_shared_buffer",
        )
    return descriptor


def remove_unused_buffers() -> int:
    """Removes unused buffers of this user, left over from killed processes; returns their number."""
    removed = 0
    for folder in {SHARED_FOLDER, MEMORY_FOLDER}:
        for path in folder.glob(f"{PREFIX}*"):
            with suppress(FileNotFoundError):
                removed += _remove_if_unused(path)
    if removed:
        log.info("shared_buffers_removed", buffers=removed)
    return removed


def _remove_if_unused(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if not status.st_size and time.time() - status.st_mtime < CREATION_GRACE_S:
        return False  # it is being created, and not locked yet
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_unused = try_lock(descriptor, fcntl.LOCK_EX)
        if is_unused:
            path.unlink()
        return is_unused
    finally:
        os.close(descriptor)


class VersionBuffer:
    """uint8 `[bytes]` of one version, and their shared file, if any.

    A shared buffer created here loses its name when this object is freed; existing mappings stay valid.
    """

    def __init__(self, buffer: Buffer, *, file: SharedFile | None = None) -> None:
        self.buffer = buffer
        self._file = file

    @classmethod
    def allocate(cls, size_bytes: int) -> "VersionBuffer":
        """Allocates memory for a version: in shared memory, or in private memory where that is full."""
        try:
            shared = SharedBuffer(size_bytes)
        except (StorageFull, OSError) as problem:
            log.warning("version_not_in_shared_memory", bytes=size_bytes, problem=str(problem))
            return cls(np.empty(size_bytes, dtype=np.uint8))
        buffer = cls(shared.buffer, file=shared.file)
        weakref.finalize(buffer, shared.unlink)
        return buffer

    @classmethod
    def from_shared_file(cls, file: SharedFile) -> "VersionBuffer":
        """Maps a publisher's file without a copy; the writer does not change it while this object exists.

        Raises: UnknownVersion when it cannot be mapped; the publisher then sends the bytes.
        """
        try:
            return cls(map_read_only(file), file=file)
        except (InvalidInput, UnknownVersion) as problem:
            raise UnknownVersion(
                f"cannot use the publisher's shared memory ({problem}); send the bytes",
                code="weights.shared_memory_unusable",
            ) from problem

    @property
    def file(self) -> SharedFile | None:
        """File by which others on this host can map the bits; None when it does not exist, or no longer."""
        return self._file if self._file is not None and Path(self._file.path).exists() else None


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
