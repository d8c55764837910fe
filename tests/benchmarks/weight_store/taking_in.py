"""What it takes to publish a version to a store on the same host, by what is sent."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.weights import Manifest
from astraflow.weights.config import WeightsConfig
from astraflow.weights.shared import SharedBuffer
from astraflow.weights.store import WeightStore, opened
from astraflow.weights.tensors import Buffer
from tests.benchmarks.weight_store.walk import versions
from tests.weights.shelves import put, put_shared
from tests.weights.versions import delta_file, full_file


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeIn:
    """One way. Seconds are of a version, in the mean."""

    sent: str
    publisher_s: float
    """Encoding, at the publisher; laying out and hashing come to it, the same for all."""
    store_s: float
    """From the first chunk until the version is durable."""


Version = tuple[Manifest, Buffer]
Way = Callable[[WeightStore, Version, Version], tuple[float, float]]


def measure(directory: Path, *, elements: int, learning_rate: float, count: int) -> list[TakeIn]:
    """Each way with the same versions, from memory so that no disk is measured."""
    ways: dict[str, Way] = {"delta": _delta, "shared bits": _shared, "shared bits and delta": _both}
    found = []
    for name, way in ways.items():
        publisher_s = store_s = 0.0
        config = WeightsConfig(keep_in={"kind": "memory"}, anchor_every=10**6, keep_versions=count + 1)
        with opened(directory / name, config) as store:
            before: Version | None = None
            for now in versions(count + 1, elements=elements, learning_rate=learning_rate):
                if before is None:
                    put(store, now[0], *full_file(*now), chunk_bytes=2**20)
                else:
                    seconds = way(store, before, now)
                    publisher_s, store_s = publisher_s + seconds[0], store_s + seconds[1]
                before = now
        found.append(TakeIn(sent=name, publisher_s=publisher_s / count, store_s=store_s / count))
    return found


def _delta(store: WeightStore, before: Version, now: Version) -> tuple[float, float]:
    began = time.perf_counter()
    transfer, data = delta_file(before, now)
    encoded = time.perf_counter()
    assert put(store, now[0], transfer, data, chunk_bytes=2**20)
    return encoded - began, time.perf_counter() - encoded


def _shared(store: WeightStore, before: Version, now: Version) -> tuple[float, float]:
    return _adopted(store, before, now, has_delta=False)


def _both(store: WeightStore, before: Version, now: Version) -> tuple[float, float]:
    return _adopted(store, before, now, has_delta=True)


def _adopted(store: WeightStore, before: Version, now: Version, *, has_delta: bool) -> tuple[float, float]:
    """The copy into the buffer counts as the publisher's device-to-host copy does: not at all."""
    buffer = SharedBuffer(now[0].size_bytes)
    buffer.buffer[:] = now[1]
    began = time.perf_counter()
    delta = delta_file(before, now) if has_delta else None
    encoded = time.perf_counter()
    assert put_shared(store, now[0], buffer.file, delta, chunk_bytes=2**20)
    taken = time.perf_counter()
    buffer.remove()
    return encoded - began, taken - encoded
