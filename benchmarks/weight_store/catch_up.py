"""Bytes that an outdated reader needs, and the cost of making one delta for it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from astraflow.contract.ids import Version
from astraflow.contract.weights import Manifest
from astraflow.weights.codec.chunks import transfer_of
from astraflow.weights.codec.delta import Level, encode_delta
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.reconstruction import rebuild
from astraflow.weights.store.recovery import recover
from astraflow.weights.store.storage.disk import DiskOptions, DiskStorage
from astraflow.weights.store.store import open_store
from astraflow.weights.tensors import MAX_VERSION_BYTES, Buffer
from benchmarks.weight_store.training_versions import POLICY, versions
from benchmarks.weights.entropy import floor_bytes
from benchmarks.weights.updates import Pair
from tests.weights.stored_versions import put


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """Catching up over one distance. Bytes are for each parameter of the model."""

    behind: int
    chain_bytes: float
    max_direct_delta_bytes: float
    floor_bytes: float
    """Lower bound of any direct delta that knows the old exponents."""
    rebuild_s: float
    """Seconds to rebuild the old bits from the nearest earlier full snapshot: file, deltas, hashes."""
    encode_s: float
    """Seconds to encode the delta from them to the newest bits."""


def measure(directory: Path, *, elements: int, learning_rate: float, distances: Sequence[int]) -> list[CatchUp]:
    """Publishes as many versions as the longest distance needs, then catches up."""
    newest, bits = _publish(directory, max(distances) + 1, elements=elements, learning_rate=learning_rate)
    folder = DiskStorage(DiskOptions(), directory).folder(POLICY)
    records = recover(folder, max_bytes=MAX_VERSION_BYTES).records
    measurements = []
    for behind in distances:
        base = Version(newest.version - behind)
        chain = [file for v in range(base + 1, newest.version + 1) if (file := records[Version(v)].delta)]
        began = time.perf_counter()
        old = rebuild(folder, records, base, into=lambda size_bytes: np.empty(size_bytes, dtype=np.uint8))
        rebuilt = time.perf_counter()
        direct = encode_delta(records[base].manifest, old, newest, bits, level=Level.DENSE).data
        encoded = time.perf_counter()
        measurements.append(
            CatchUp(
                behind=behind,
                chain_bytes=sum(file.size_bytes for file in chain) / elements,
                max_direct_delta_bytes=len(direct) / elements,
                floor_bytes=floor_bytes(Pair(base=records[base].manifest, old=old, target=newest, new=bits)) / elements,
                rebuild_s=rebuilt - began,
                encode_s=encoded - rebuilt,
            )
        )
    return measurements


def _publish(directory: Path, count: int, *, elements: int, learning_rate: float) -> tuple[Manifest, Buffer]:
    """Publishes all versions into a store in `directory`; returns the newest."""
    with open_store(directory, WeightsConfig(retained_versions=count)) as store:
        before: tuple[Manifest, Buffer] | None = None
        for now in versions(count, elements=elements, learning_rate=learning_rate):
            data = now[1].tobytes() if before is None else encode_delta(*before, *now).data
            transfer = transfer_of(now[0], data, base=None if before is None else before[0].version)
            put(store, now[0], transfer, data, chunk_bytes=2**20)
            before = now
    assert before is not None
    return before
