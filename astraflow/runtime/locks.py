"""File locks for one process at a time; the system releases them when the process ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from astraflow.contract.errors import AstraFlowError


@contextmanager
def exclusive_lock(path: Path, *, refusal: AstraFlowError) -> Iterator[None]:
    """Holds the lock file `path`, created if missing, until the block ends.

    Raises: `refusal` when another process holds it; OSError.
    """
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        yield
