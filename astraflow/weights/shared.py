"""Full versions in shared memory, which other processes on the same host map instead of receiving a copy.

A buffer is a file in `/dev/shm`. Whoever uses it, its writer included, holds a shared lock on it, which ends with the
last use of the mapped array, or with the process. So nobody needs to be told who still reads: a writer may write a
buffer again, and anyone of the same user may remove it, once its lock can be had alone.
"""

import fcntl
import mmap
import os
import stat
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

import numpy as np

from astraflow.contract.errors import InvalidInput, UnknownVersion
from astraflow.contract.weights import SharedFile
from astraflow.runtime.logs import get_logger
from astraflow.weights.files import noticing_full_disk
from astraflow.weights.tensors import Buffer, frozen

log = get_logger()

SHARED_FOLDER = Path("/dev/shm")  # noqa: S108 (files are made with O_EXCL and a random name, and opened without links)
PREFIX = "astraflow-"

MAKING_S = 60.0
"""A buffer without a size that is older was left by a process that was killed while it made it."""


@cache
def host_id() -> str:
    """The same for processes that see the same shared memory: one boot of one kernel, one `/dev/shm`."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{SHARED_FOLDER.stat().st_dev}"


def is_here(file: SharedFile) -> bool:
    """Whether this process can see the file, if it is still there."""
    return file.host == host_id()


class SharedBuffer:
    """A buffer that this process writes and others map: written, then shown to others by its `file`.

        made ──► writing ──► (shown to others) ──reclaim, nobody reads──► writing ──► ...
                                     └──────────── remove ──► gone when its last reader is

    Not to be written while others may read: ask `reclaim` first.
    """

    def __init__(self, size_bytes: int) -> None:
        """size_bytes: at least 1. Raises: StorageFull when shared memory has no room for all of it."""
        path = SHARED_FOLDER / f"{PREFIX}{uuid4().hex}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with noticing_full_disk(path):
                os.posix_fallocate(descriptor, 0, size_bytes)  # now, since a full memory later is a fatal signal
            self.buffer: Buffer = np.frombuffer(mmap.mmap(descriptor, size_bytes), dtype=np.uint8)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        self._descriptor = descriptor
        self._path = path
        self.file = SharedFile(host=host_id(), path=str(path), size_bytes=size_bytes)

    def reclaim(self) -> bool:
        """Whether nobody else reads the buffer, so that it may be written; if so, nobody can map it before `show`."""
        is_alone = _locked(self._descriptor, fcntl.LOCK_EX)
        if not is_alone:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # what was refused has taken the lock there was
        return is_alone

    def show(self) -> None:
        """Others may map it from now on; it must not be written again before `reclaim`."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def remove(self) -> None:
        """Take its name away; who maps it keeps it. The array stays usable here too."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def attach(file: SharedFile) -> Buffer:
    """The bits in a shared file, read-only and without a copy; the writer leaves them alone while the array is used.

    The path comes from a peer: only a buffer of ours, of the same user, in shared memory is opened. What is in it is
    for hashes to prove. Raises: UnknownVersion when it is gone or being written; InvalidInput when it is no such
    buffer.
    """
    descriptor = _opened(file, os.O_RDONLY)
    try:
        if not _locked(descriptor, fcntl.LOCK_SH):
            raise UnknownVersion(f"the shared buffer {Path(file.path).name} is being written again: plan again")
        mapping = mmap.mmap(descriptor, file.size_bytes, prot=mmap.PROT_READ)  # keeps the lock: a duplicate of the file
    finally:
        os.close(descriptor)
    return frozen(np.frombuffer(mapping, dtype=np.uint8))


def join(file: SharedFile) -> Buffer:
    """The same buffer, to be written together with its maker, who holds the lock and says when.

    Raises: as `attach`.
    """
    descriptor = _opened(file, os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(descriptor, file.size_bytes), dtype=np.uint8)
    finally:
        os.close(descriptor)


def _opened(file: SharedFile, access: int) -> int:
    path = Path(file.path)
    if not is_here(file) or path.parent != SHARED_FOLDER or not path.name.startswith(PREFIX):
        raise InvalidInput(f"{file.path!r} is no shared buffer on this host")
    try:
        descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UnknownVersion(f"the shared buffer {path.name} is gone: plan again") from None
    except OSError as problem:
        raise InvalidInput(f"the shared buffer {path.name} cannot be opened: {problem.strerror}") from problem
    status = os.fstat(descriptor)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & 0o777 == 0o600
    if not is_ours or status.st_size != file.size_bytes or file.size_bytes < 1:
        os.close(descriptor)
        raise InvalidInput(f"the shared buffer {path.name} is not the one that was named")
    return descriptor


def sweep() -> int:
    """Remove buffers of this user that no process uses, left by ones that were killed; returns how many."""
    removed = 0
    for path in SHARED_FOLDER.glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):
            removed += _removed_if_unused(path)
    if removed:
        log.info("shared_buffers_removed", buffers=removed)
    return removed


def _removed_if_unused(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if not status.st_size and time.time() - status.st_mtime < MAKING_S:
        return False  # it is just being made, and not locked yet
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_unused = _locked(descriptor, fcntl.LOCK_EX)
        if is_unused:
            path.unlink()
        return is_unused
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
