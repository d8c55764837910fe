"""File locks for one process at a time; the system releases them when the process ends."""

import fcntl
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from astraflow.contract.errors import AstraFlowError

RETRY_S = 1.0
"""Time for which a lock that only probes hold is requested again."""

_PAUSE_S = 0.005


@contextmanager
def exclusive_lock(path: Path, *, refusal: AstraFlowError) -> Iterator[None]:
    """Holds the lock file `path`, created if missing, until the block ends.

    Raises: `refusal` when another process holds it; OSError.
    """
    with path.open("a+") as lock:
        lock_exclusively(lock, refusal=refusal)
        yield


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Holds the lock file `path`, created if missing, until the block ends; waits for other holders, which must be
    brief. Raises: OSError."""
    with path.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lock_exclusively(file: IO[str], *, refusal: AstraFlowError) -> None:
    """Locks an open file until it is closed.

    file: opened for reading and writing, as some network file systems require.
    Raises: `refusal` when another process holds it; OSError.
    """
    give_up_at = time.monotonic() + RETRY_S
    while not try_lock(file, fcntl.LOCK_EX):
        # `is_locked` holds a shared lock for an instant, which does not make the caller a holder.
        if not try_lock(file, fcntl.LOCK_SH) or time.monotonic() > give_up_at:
            raise refusal
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(_PAUSE_S * random.uniform(0.5, 1.5))  # two callers that test the lock at once must not meet again


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock file; False for a missing file. Raises: OSError."""
    try:
        with path.open("r") as file:
            return not try_lock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def try_lock(file: IO[str] | int, kind: int) -> bool:
    """Locks an open file or a descriptor; returns False if another process holds it. kind: of `fcntl.flock`."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
