"""Weight store on disk, for tests."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, SharedFile, Transfer
from astraflow.runtime.clock import Clock
from astraflow.weights.codec.chunks import check_file, split, unhashed_transfer
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.store import WeightStore, open_store
from astraflow.weights.tensors import Buffer, SnapshotTensors, verify
from astraflow.weights.transfer.transfer_application import apply_transfers
from tests.weights.versions import POLICY, delta_file, full_file, layout

CONFIG = WeightsConfig(retained_versions=3, full_snapshot_every=2)


def open_test_store(
    directory: Path, config: WeightsConfig = CONFIG, clock: Clock | None = None
) -> AbstractContextManager[WeightStore]:
    return open_store(directory, config, clock=clock)


def put(
    store: WeightStore, manifest: Manifest, transfer: Transfer, data: bytes | memoryview, *, chunk_bytes: int = 1000
) -> bool:
    """Publishes one file, as the servicer does."""
    incoming = store.begin_upload(manifest, transfer)
    if incoming is None:
        return False
    for chunk in split(data, chunk_bytes=chunk_bytes):
        incoming.add(chunk)
    is_new = incoming.commit()
    store.apply_retention(manifest.policy)
    return is_new


def put_shared(
    store: WeightStore,
    manifest: Manifest,
    shared: SharedFile,
    delta: tuple[Transfer, bytes] | None = None,
    *,
    chunk_bytes: int = 1000,
) -> bool:
    """Publishes from a buffer on this host, as the servicer does."""
    transfer, data = delta or (unhashed_transfer(manifest), b"")
    incoming = store.begin_upload(manifest, transfer, shared=shared)
    if incoming is None:
        return False
    for chunk in split(data, chunk_bytes=chunk_bytes):
        incoming.add(chunk)
    is_new = incoming.commit()
    del incoming  # it references the buffer
    store.apply_retention(manifest.policy)
    return is_new


def put_full(store: WeightStore, tensors: SnapshotTensors, version: int) -> bool:
    manifest, buffer = layout(tensors, version)
    return put(store, manifest, *full_file(manifest, buffer))


def put_all(store: WeightStore, snapshots: Sequence[SnapshotTensors], *, first: int = 0) -> None:
    """Publishes versions as a trainer does: the first in full, the rest as deltas."""
    before: tuple[Manifest, Buffer] | None = None
    for version, tensors in enumerate(snapshots, start=first):
        now = layout(tensors, version)
        transfer, data = full_file(*now) if before is None else delta_file(before, now)
        assert put(store, now[0], transfer, data)
        before = now


def fetched_manifest(
    store: WeightStore, *, have: tuple[Manifest, Buffer] | None = None, want: int | None = None
) -> Manifest:
    """Fetches and verifies a version as a node does; returns its manifest."""
    plan = store.plan(POLICY, have=have[0].version if have else None, want=None if want is None else Version(want))
    staged = apply_transfers(plan, [read(store, transfer) for transfer in plan.transfers], base=have)
    verify(plan.manifest, staged.buffer)
    return plan.manifest


def read(store: WeightStore, transfer: Transfer) -> Buffer:
    """Returns one whole file, verified against its hash."""
    source = store.open(transfer)
    data = np.frombuffer(source.read(0, transfer.size_bytes), dtype=np.uint8)
    source.close()
    check_file(transfer, data)
    return data


def names(directory: Path, policy: PolicyId = POLICY) -> list[str]:
    """Returns the names of a policy's files."""
    folder = directory / policy
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
