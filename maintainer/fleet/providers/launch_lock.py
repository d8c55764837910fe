"""Lock per launch id, for providers whose service allows duplicate names."""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_FILES = 64
"""Number of lock files. Ids with equal digests share one, so that the number of files stays small."""
_POLL_S = 0.02


@asynccontextmanager
async def launch_lock(directory: Path, launch_id: str) -> AsyncIterator[None]:
    """Holds the lock of a launch id among all processes with this directory. A killed process releases it."""
    descriptor = await asyncio.to_thread(_open_lock_file, directory, launch_id)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file(directory: Path, launch_id: str) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    number = hashlib.blake2b(launch_id.encode(), digest_size=2).digest()
    path = directory / f"launch-{int.from_bytes(number) % _FILES}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
