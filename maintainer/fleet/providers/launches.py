"""Launch requests, their order, which the instance carries as text, and a lock for services with duplicate names."""

import asyncio
import fcntl
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config, suggest_name
from maintainer.fleet.providers.base import Instance, InvalidError, LaunchSpec, ProviderError, Quote, Tags, fingerprint

T = TypeVar("T")
C = TypeVar("C", bound=Config)

_FILES = 64
"""Number of lock files. Ids with equal digests share one, so that the number of files stays small."""
_POLL_S = 0.02

_LAUNCH_ID = re.compile(r"[0-9A-Za-z]([0-9A-Za-z-]{0,48}[0-9A-Za-z])?")
_SHORTEST_LIFE_S = 60.0


def check_launch_id(launch_id: str) -> None:
    """Checks that a launch id can be part of every provider's names. Raises: InvalidError."""
    if not _LAUNCH_ID.fullmatch(launch_id):
        raise InvalidError(
            f"cannot use the launch id {launch_id[:80]!r}: it is no launch id; use 1 to 50 letters, digits and -",
            code="provider.invalid_launch_id",
        )


def check_same_spec(stored_fingerprint: object, spec: LaunchSpec, launch_id: str) -> None:
    """Checks that an existing instance of the launch has this spec. Raises: InvalidError."""
    if stored_fingerprint != fingerprint(spec):
        raise InvalidError(
            f"cannot launch {launch_id}: the launch id was used with another spec; use a new launch id",
            code="provider.launch_id_reused",
        )


def life_s(spec: LaunchSpec, launch_id: str, *, now: float) -> float:
    """Returns the time until the instance's expiry in seconds. Raises: InvalidError below a minute."""
    left_s = spec.tags.expires_at - now
    if left_s < _SHORTEST_LIFE_S:
        raise InvalidError(
            f"cannot launch {launch_id}: it expires in {left_s:.0f} s, below a minute; set a later expiry",
            code="provider.launch_expired",
        )
    return left_s


def launch_order(spec: LaunchSpec, launch_id: str, *, kind: str) -> dict[str, Any]:
    """Returns what the instance carries about its launch. kind: its type."""
    return {
        "fingerprint": fingerprint(spec),
        "launch_id": launch_id,
        "tags": asdict(spec.tags),
        "type": kind,
        "region": spec.region,
        "is_spot": spec.is_spot,
    }


def parse_order(text: str) -> dict[str, Any]:
    """Returns the launch order in a text; empty for a foreign text."""
    try:
        order = json.loads(text)
    except ValueError:
        return {}
    return order if isinstance(order, dict) else {}


def ordered_instance(order: Mapping[str, Any], **fields: Any) -> Instance:
    """Returns the instance of a launch order. fields: those that the order does not have."""
    tags = order.get("tags")
    return Instance(
        tags=Tags(**tags) if isinstance(tags, dict) and set(tags) == set(Tags.__slots__) else None,
        type=str(order.get("type", "")),
        region=str(order.get("region", "")),
        is_spot=bool(order.get("is_spot", False)),
        **fields,
    )


def configured_quote(usd_per_hour: float, *, launch_delay_s: float, discount: float) -> Quote:
    """Returns the configured price of a type. discount: share of the price."""
    source = "as configured for the type" if usd_per_hour else "no price is configured"
    return Quote(usd_per_hour=usd_per_hour * (1 - discount), launch_delay_s=launch_delay_s, source=source)


def without_token(problem: ProviderError, token: str) -> ProviderError:
    """Returns the error without the token in its message."""
    return type(problem)(str(problem).replace(token, "***"), code=problem.code) if token else problem


def type_name(types: Mapping[str, object], spec: LaunchSpec) -> str:
    """Returns the spec's type, by default the first."""
    return spec.type or next(iter(types))


def chosen_type(types: Mapping[str, T], spec: LaunchSpec) -> T:
    """Returns the settings of the spec's type. Raises: InvalidError."""
    name = type_name(types, spec)
    if name not in types:
        raise InvalidError(
            f"cannot launch: no type is named {name!r}; {suggest_name(name, [*types])}", code="provider.unknown_type"
        )
    return types[name]


def check_region(regions: Collection[str], spec: LaunchSpec) -> None:
    """Checks the spec's region. Raises: InvalidError for a region that is not configured."""
    if spec.region and spec.region not in regions:
        suggestion = suggest_name(spec.region, [*regions]) if regions else "none is configured"
        raise InvalidError(
            f"cannot launch: no region is named {spec.region!r}; {suggestion}", code="provider.unknown_region"
        )


def pool_options(kind: type[C], spec: LaunchSpec, *, defaults: Mapping[str, Any] | None = None) -> C:
    """Parses the pool's provider-specific options, over `defaults`. Raises: InvalidError."""
    try:
        return kind.parse({**(defaults or {}), **spec.options}, where="options of the pool")
    except InvalidInput as problem:
        raise InvalidError(str(problem), code="provider.invalid_pool_options") from None


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
