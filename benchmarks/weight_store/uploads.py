"""Cost of publishing a version to a store on the same host, by the uploaded format."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.weights import Manifest
from astraflow.weights.config import WeightsConfig
from astraflow.weights.shared_memory import SharedBuffer
from astraflow.weights.store.store import WeightStore, open_store
from astraflow.weights.tensors import Buffer
from benchmarks.weight_store.training_versions import versions
from tests.weights.stored_versions import put, put_shared
from tests.weights.versions import delta_file, full_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Figures of one format. Seconds per version, mean."""

    sent: str
    publisher_s: float
    """Encoding time of the publisher, without layout and hashing, which are equal for all."""
    store_s: float
    """Seconds from the first chunk until the version is durable."""


Version = tuple[Manifest, Buffer]
Way = Callable[[WeightStore, Version, Version], tuple[float, float]]


def measure(directory: Path, *, elements: int, learning_rate: float, count: int) -> list[Upload]:
    """Measures each format with the same versions, from memory so that no disk is measured."""
    ways: dict[str, Way] = {"delta": _delta, "shared bits": _shared, "shared bits and delta": _both}
    uploads = []
    for name, way in ways.items():
        publisher_s = store_s = 0.0
        config = WeightsConfig(storage={"kind": "memory"}, full_snapshot_every=10**6, retained_versions=count + 1)
        with open_store(directory / name, config) as store:
            before: Version | None = None
            for now in versions(count + 1, elements=elements, learning_rate=learning_rate):
                if before is None:
                    put(store, now[0], *full_file(*now), chunk_bytes=2**20)
                else:
                    seconds = way(store, before, now)
                    publisher_s, store_s = publisher_s + seconds[0], store_s + seconds[1]
                before = now
        uploads.append(Upload(sent=name, publisher_s=publisher_s / count, store_s=store_s / count))
    return uploads


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
    """Returns encoding and storing time, without the copy into the buffer (the publisher's device-to-host copy)."""
    buffer = SharedBuffer(now[0].size_bytes)
    buffer.buffer[:] = now[1]
    began = time.perf_counter()
    delta = delta_file(before, now) if has_delta else None
    encoded = time.perf_counter()
    assert put_shared(store, now[0], buffer.file, delta, chunk_bytes=2**20)
    stored = time.perf_counter()
    buffer.unlink()
    return encoded - began, stored - encoded
