"""Versions that a publisher on the same host offers in shared memory instead of sending them."""

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import CorruptData, UnknownVersion
from astraflow.contract.ids import Version
from astraflow.contract.weights import Manifest, SharedFile, TransferKind
from astraflow.weights.codec.chunks import unhashed_transfer
from astraflow.weights.codec.delta import encode_delta
from astraflow.weights.config import WeightsConfig
from astraflow.weights.shared_memory import SharedBuffer, map_read_only
from astraflow.weights.tensors import Buffer
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.weights.stored_versions import fetched_manifest, names, open_test_store, put_full, put_shared, read
from tests.weights.versions import POLICY, delta_file, history, layout, snapshot

SNAPSHOTS = history(6)
VERSIONS = [layout(tensors, version) for version, tensors in enumerate(SNAPSHOTS)]
SharedBuffers = Callable[[tuple[Manifest, Buffer]], SharedBuffer]


@pytest.fixture
def shared_buffer() -> Iterator[SharedBuffers]:
    """Returns a function that places a version in shared memory, as a publisher does."""
    buffers: list[SharedBuffer] = []

    def place(version: tuple[Manifest, Buffer]) -> SharedBuffer:
        buffer = SharedBuffer(version[0].size_bytes)
        buffer.buffer[:] = version[1]
        buffers.append(buffer)
        return buffer

    yield place
    for buffer in buffers:
        buffer.unlink()


def test_a_version_is_adopted_without_a_copy_and_mapped_by_readers(
    tmp_path: Path, shared_buffer: SharedBuffers
) -> None:
    with open_test_store(tmp_path) as store:
        buffer = shared_buffer(VERSIONS[0])

        assert put_shared(store, VERSIONS[0][0], buffer.file)

        plan = store.plan(POLICY, have=None, want=None)
        assert plan.shared == buffer.file
        assert map_read_only(buffer.file).tobytes() == VERSIONS[0][1].tobytes()
        assert fetched_manifest(store) == VERSIONS[0][0]


def test_the_writer_can_reclaim_a_buffer_only_after_the_store_released_it(
    tmp_path: Path, shared_buffer: SharedBuffers
) -> None:
    with open_test_store(tmp_path, WeightsConfig(retired_version_s=0)) as store:
        first, second = shared_buffer(VERSIONS[0]), shared_buffer(VERSIONS[1])
        put_shared(store, VERSIONS[0][0], first.file)
        assert not first.reclaim()
        source = store.open(store.plan(POLICY, have=None, want=None).transfers[0])

        put_shared(store, VERSIONS[1][0], second.file)

        source.close()
        gc.collect()
        assert first.reclaim()
        assert not second.reclaim()


def test_a_reader_of_a_full_snapshot_keeps_its_buffer(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    config = WeightsConfig(full_snapshot_every=100, retired_version_s=0)
    with open_test_store(tmp_path, config) as store:
        for version in (0, 1):
            buffer = shared_buffer(VERSIONS[version])
            put_shared(store, VERSIONS[version][0], buffer.file)
        source = store.open(store.plan(POLICY, have=None, want=None).transfers[0])

        put_shared(store, VERSIONS[2][0], shared_buffer(VERSIONS[2]).file)

        assert not buffer.reclaim()
        assert bytes(source.read(0, 10**9)) == VERSIONS[1][1].tobytes()
        source.close()
        gc.collect()
        assert buffer.reclaim()


def test_a_replaced_version_can_be_reopened_for_a_limited_time(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    """Opens the file anew for each range and each resumption, as a reader over an unreliable link does."""
    clock = ManualClock()
    with open_test_store(tmp_path, WeightsConfig(full_snapshot_every=100, retired_version_s=30), clock) as store:
        for version in (0, 1):
            buffer = shared_buffer(VERSIONS[version])
            put_shared(store, VERSIONS[version][0], buffer.file)
        (full,) = store.plan(POLICY, have=None, want=None).transfers
        store.open(full).close()

        for version, passed_s in ((2, 29.0), (3, 29.0)):
            put_shared(store, VERSIONS[version][0], shared_buffer(VERSIONS[version]).file)
            clock.advance(passed_s)
            assert read(store, full).tobytes() == VERSIONS[1][1].tobytes()

        clock.advance(31.0)
        with pytest.raises(UnknownVersion) as caught:
            store.open(full)
        assert caught.value.code == "weights.file_removed"
        gc.collect()
        assert buffer.reclaim()


def test_at_most_two_replaced_versions_are_held_for_readers(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    buffers = [shared_buffer(version) for version in VERSIONS]
    with open_test_store(tmp_path, WeightsConfig(full_snapshot_every=100), ManualClock()) as store:
        for (manifest, _), buffer in zip(VERSIONS, buffers, strict=True):
            put_shared(store, manifest, buffer.file)
            store.open(store.plan(POLICY, have=None, want=None).transfers[0]).close()

        gc.collect()
        assert [buffer.reclaim() for buffer in buffers] == [True, True, True, False, False, False]


def test_followers_get_a_delta_that_the_store_made(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    with open_test_store(tmp_path) as store:
        for version in (0, 1):
            put_shared(store, VERSIONS[version][0], shared_buffer(VERSIONS[version]).file)

        (transfer,) = store.plan(POLICY, have=Version(0), want=None).transfers

        assert transfer.kind is TransferKind.DELTA
        assert read(store, transfer).tobytes() == encode_delta(*VERSIONS[0], *VERSIONS[1]).data
        assert [name for name in names(tmp_path) if name.startswith("0000000001")] == [
            "0000000001.delta",
            "0000000001.record",
        ]


def test_a_delta_sent_with_a_shared_version_is_stored_unchanged(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    delta = delta_file(VERSIONS[0], VERSIONS[1])
    with open_test_store(tmp_path) as store:
        put_full(store, SNAPSHOTS[0], 0)

        assert put_shared(store, VERSIONS[1][0], shared_buffer(VERSIONS[1]).file, delta)

        assert store.plan(POLICY, have=Version(0), want=None).transfers == (delta[0],)
        assert store.notices(POLICY)[-1].changed_elements > 0


def test_a_delta_that_does_not_produce_the_bits_is_refused(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    other = layout(SNAPSHOTS[2], 1)
    transfer, data = delta_file(VERSIONS[0], other)
    with open_test_store(tmp_path) as store:
        put_full(store, SNAPSHOTS[0], 0)

        with raises_code(CorruptData, "weights.delta_mismatch"):
            put_shared(store, VERSIONS[1][0], shared_buffer(VERSIONS[1]).file, (transfer, data))

        assert [notice.version for notice in store.notices(POLICY)] == [0]
        assert put_shared(store, VERSIONS[1][0], shared_buffer(VERSIONS[1]).file)


def test_a_delta_on_a_missing_base_is_replaced_by_the_stores_own_delta(
    tmp_path: Path, shared_buffer: SharedBuffers
) -> None:
    """Needs no second publish from a trainer that is ahead of a store that lost a version: the store has all bits."""
    skipping = delta_file(VERSIONS[0], VERSIONS[2])
    with open_test_store(tmp_path) as store:
        put_full(store, SNAPSHOTS[0], 0)
        put_full(store, SNAPSHOTS[1], 1)

        assert put_shared(store, VERSIONS[2][0], shared_buffer(VERSIONS[2]).file, skipping)

        (transfer,) = store.plan(POLICY, have=Version(1), want=None).transfers
        assert transfer.base == 1
        assert fetched_manifest(store, have=VERSIONS[1]) == VERSIONS[2][0]


def test_bits_that_differ_from_the_manifest_are_refused(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    with open_test_store(tmp_path) as store:
        buffer = shared_buffer(VERSIONS[1])

        with raises_code(CorruptData, "weights.hash_mismatch", "'embed.weight'"):
            put_shared(store, VERSIONS[0][0], buffer.file)

        gc.collect()
        assert buffer.reclaim(), "the refused buffer is released"
        assert store.notices(POLICY) == ()


def test_a_buffer_of_another_size_is_refused(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    small = layout({"w": snapshot()["norm.weight"]}, 0)
    with open_test_store(tmp_path) as store, raises_code(CorruptData, "weights.size_mismatch", "bytes, expected"):
        put_shared(store, VERSIONS[0][0], shared_buffer(small).file)


@pytest.mark.parametrize("case", ["gone", "elsewhere", "written", "no buffer"])
def test_an_unavailable_shared_buffer_is_requested_as_bytes(
    tmp_path: Path, shared_buffer: SharedBuffers, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = shared_buffer(VERSIONS[0])
    file: SharedFile = buffer.file
    match case:
        case "gone":
            buffer.unlink()
        case "elsewhere":
            file = replace(file, host="another boot/7")
        case "written":
            assert buffer.reclaim()
        case "no buffer":
            file = replace(file, path="/etc/passwd")
    with open_test_store(tmp_path) as store:
        with raises_code(UnknownVersion, "weights.shared_memory_unusable"):
            put_shared(store, VERSIONS[0][0], file)

        assert put_full(store, SNAPSHOTS[0], 0)
        assert fetched_manifest(store) == VERSIONS[0][0]


def test_a_removed_shared_file_is_not_offered_to_readers(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    with open_test_store(tmp_path) as store:
        buffer = shared_buffer(VERSIONS[0])
        put_shared(store, VERSIONS[0][0], buffer.file)

        buffer.unlink()

        assert store.plan(POLICY, have=None, want=None).shared is None
        assert fetched_manifest(store) == VERSIONS[0][0]


def test_adopting_a_stored_version_again_is_harmless(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    with open_test_store(tmp_path) as store:
        buffer = shared_buffer(VERSIONS[0])
        put_shared(store, VERSIONS[0][0], buffer.file)
        buffer.unlink()

        assert not put_shared(store, VERSIONS[0][0], buffer.file)


def test_an_adopted_version_is_restored_after_a_restart(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    with open_test_store(tmp_path) as store:
        for version in range(6):
            buffer = shared_buffer(VERSIONS[version])
            put_shared(store, VERSIONS[version][0], buffer.file)
            buffer.unlink()
    with open_test_store(tmp_path) as store:
        assert fetched_manifest(store) == VERSIONS[5][0]
        assert [name for name in names(tmp_path) if name.endswith(".full")] == ["0000000002.full", "0000000004.full"]
        for notice in store.notices(POLICY):
            assert fetched_manifest(store, want=notice.version) == VERSIONS[notice.version][0]


def test_received_versions_can_be_mapped(tmp_path: Path) -> None:
    with open_test_store(tmp_path) as store:
        put_full(store, SNAPSHOTS[0], 0)
        file = store.plan(POLICY, have=None, want=None).shared
        assert file is not None
        assert map_read_only(file).tobytes() == VERSIONS[0][1].tobytes()

        put_full(store, SNAPSHOTS[1], 1)

        gc.collect()
        assert not Path(file.path).exists(), "the store keeps one version in memory"
        assert store.plan(POLICY, have=None, want=Version(0)).shared is None
    with open_test_store(tmp_path) as store:
        again = store.plan(POLICY, have=None, want=None).shared
        assert again is not None
        assert map_read_only(again).tobytes() == VERSIONS[1][1].tobytes()


def test_full_shared_memory_disables_only_the_sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", raise_full)
    with open_test_store(tmp_path) as store:
        put_full(store, SNAPSHOTS[0], 0)

        assert fetched_manifest(store) == VERSIONS[0][0]
        assert store.plan(POLICY, have=None, want=None).shared is None


def test_an_announced_buffer_of_another_version_is_refused(tmp_path: Path, shared_buffer: SharedBuffers) -> None:
    manifest = VERSIONS[0][0]
    with open_test_store(tmp_path) as store:
        for forged in (
            replace(unhashed_transfer(manifest), target=Version(7)),
            replace(unhashed_transfer(manifest), size_bytes=10**9),
        ):
            with pytest.raises(CorruptData):
                store.begin_upload(manifest, forged, shared=shared_buffer(VERSIONS[0]).file)
