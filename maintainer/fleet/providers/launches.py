"""Launch requests: their type, region and pool options, and a lock where a service allows duplicate names."""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config, suggest_name
from maintainer.fleet.providers.base import Invalid, LaunchSpec

T = TypeVar("T")
C = TypeVar("C", bound=Config)

_FILES = 64
"""Number of lock files. Ids with equal digests share one, so that the number of files stays small."""
_POLL_S = 0.02


def type_name(types: Mapping[str, object], spec: LaunchSpec) -> str:
    """Returns the spec's type, by default the first."""
    return spec.type or next(iter(types))


def chosen_type(types: Mapping[str, T], spec: LaunchSpec) -> T:
    """Returns the settings of the spec's type. Raises: Invalid."""
    name = type_name(types, spec)
    if name not in types:
        raise Invalid(
            f"cannot launch: no type is named {name!r}; {suggest_name(name, [*types])}", code="provider.unknown_type"
        )
    return types[name]


def check_region(regions: Collection[str], spec: LaunchSpec) -> None:
    """Checks the spec's region. Raises: Invalid for a region that is not configured."""
    if spec.region and spec.region not in regions:
        suggestion = suggest_name(spec.region, [*regions]) if regions else "none is configured"
        raise Invalid(
            f"cannot launch: no region is named {spec.region!r}; {suggestion}", code="provider.unknown_region"
        )


def pool_options(kind: type[C], spec: LaunchSpec) -> C:
    """Parses the pool's provider-specific options. Raises: Invalid."""
    try:
        return kind.parse(spec.options, where="options of the pool")
    except InvalidInput as problem:
        raise Invalid(str(problem), code="provider.invalid_pool_options") from None


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
