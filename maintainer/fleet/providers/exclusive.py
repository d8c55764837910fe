"""One launch at a time under one id, for providers whose service lets two things have one name."""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_FILES = 64
"""Locks are shared by ids with equal digests: a launch waits for another now and then, and files stay few."""
_LOOK_S = 0.02


@asynccontextmanager
async def exclusive(directory: Path, launch_id: str) -> AsyncIterator[None]:
    """Hold the id's lock, against all processes with this directory. Whoever is killed lets go of it."""
    descriptor = await asyncio.to_thread(_opened, directory, launch_id)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _opened(directory: Path, launch_id: str) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    number = hashlib.blake2b(launch_id.encode(), digest_size=2).digest()
    path = directory / f"launch-{int.from_bytes(number) % _FILES}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
