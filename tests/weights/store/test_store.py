import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull, UnknownPolicy, UnknownVersion
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import TransferKind, VersionNotice
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.history import History
from astraflow.weights.store.records import Record
from astraflow.weights.store.store import open_store
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import weight_plane_pb2
from tests.errors import raises_code
from tests.weights.stored_versions import fetched_manifest, names, open_test_store, put, put_all, put_full, read
from tests.weights.versions import POLICY, delta_file, full_file, history, layout, snapshot, stepped


def test_the_newest_version_is_always_fetchable_in_full(tmp_path: Path) -> None:
    snapshots = history(5)
    with open_test_store(tmp_path) as store:
        for version, tensors in enumerate(snapshots):
            put_full(store, tensors, version)
            plan = store.plan(POLICY, have=None, want=None)

            assert [transfer.kind for transfer in plan.transfers] == [TransferKind.FULL]
            assert fetched_manifest(store) == layout(tensors, version)[0]


def test_a_node_with_an_old_version_gets_deltas(tmp_path: Path) -> None:
    snapshots = history(3)
    with open_test_store(tmp_path) as store:
        put_all(store, snapshots)

        plan = store.plan(POLICY, have=Version(0), want=None)

        assert [(transfer.base, transfer.target) for transfer in plan.transfers] == [(0, 1), (1, 2)]
        assert fetched_manifest(store, have=layout(snapshots[0], 0)) == layout(snapshots[2], 2)[0]


def test_every_stored_version_has_a_route_without_a_base(tmp_path: Path) -> None:
    snapshots = history(9)
    with open_test_store(tmp_path) as store:
        put_all(store, snapshots)

        for notice in store.notices(POLICY):
            assert fetched_manifest(store, want=notice.version) == layout(snapshots[notice.version], notice.version)[0]


def test_versions_beyond_the_limit_are_removed_with_their_files(tmp_path: Path) -> None:
    with open_test_store(tmp_path, WeightsConfig(retained_versions=3, full_snapshot_every=2)) as store:
        put_all(store, history(9))

        assert [notice.version for notice in store.notices(POLICY)] == [6, 7, 8]
        assert {name[:10] for name in names(tmp_path)} == {"0000000006", "0000000007", "0000000008"}
        with raises_code(UnknownVersion, "weights.version_not_stored", "6 to 8"):
            store.plan(POLICY, have=None, want=Version(2))
        assert [transfer.kind for transfer in store.plan(POLICY, have=Version(2), want=None).transfers] == [
            TransferKind.FULL
        ]


def test_a_reader_keeps_its_file_when_the_version_is_removed(tmp_path: Path) -> None:
    snapshots = history(9)
    with open_test_store(tmp_path) as store:
        put_all(store, snapshots[:2])
        (transfer,) = store.plan(POLICY, have=Version(0), want=None).transfers
        (full,) = store.plan(POLICY, have=None, want=None).transfers
        source, full_source = store.open(transfer), store.open(full)
        expected = source.read(0, transfer.size_bytes)
        full_expected = bytes(full_source.read(0, full.size_bytes))

        for version, tensors in enumerate(snapshots[2:], start=2):
            put_full(store, tensors, version)

        assert source.read(0, transfer.size_bytes) == expected
        assert bytes(full_source.read(0, full.size_bytes)) == full_expected
        source.close()
        full_source.close()
        with pytest.raises(UnknownVersion) as caught:
            store.open(transfer)
        assert caught.value.code == "weights.file_removed"


def test_publishing_again_is_harmless_but_other_weights_are_a_conflict(tmp_path: Path) -> None:
    snapshots = history(3)
    with open_test_store(tmp_path) as store:
        put_all(store, snapshots)

        assert not put_full(store, snapshots[2], 2)
        assert not put_full(store, snapshots[1], 1)
        with raises_code(Conflict, "weights.version_conflict"):
            put_full(store, snapshots[0], 2)


@pytest.mark.parametrize("version", [0, 4, 7, 9])
def test_a_version_out_of_order_is_refused_with_the_expected_one(tmp_path: Path, version: int) -> None:
    with open_test_store(tmp_path) as store:
        put_all(store, history(3), first=5)

        with pytest.raises((InvalidInput, Conflict)) as refusal:
            put_full(store, snapshot(8), version)

    if version != 7:
        assert refusal.value.code == "weights.version_out_of_order"
        assert "8" in str(refusal.value)


def test_the_first_version_can_have_any_number(tmp_path: Path) -> None:
    with open_test_store(tmp_path) as store:
        assert put_full(store, snapshot(), 41)


def test_a_delta_needs_the_newest_version_as_its_base(tmp_path: Path) -> None:
    snapshots = history(4)
    versions = [layout(tensors, version) for version, tensors in enumerate(snapshots)]
    with open_test_store(tmp_path) as store:
        with pytest.raises(UnknownVersion) as caught:
            put(store, versions[1][0], *delta_file(versions[0], versions[1]))
        assert caught.value.code == "weights.base_not_stored"
        put_all(store, snapshots[:2])

        skipping = delta_file(versions[0], versions[2])
        with raises_code(UnknownVersion, "weights.base_not_stored", "version 1"):
            put(store, versions[2][0], *skipping)


def test_a_delta_on_other_weights_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    snapshots = history(3)
    other = layout(snapshot(50), 1)
    target = layout(snapshots[2], 2)
    with open_test_store(tmp_path) as store:
        put_all(store, snapshots[:2])
        before = names(tmp_path)

        with pytest.raises(CorruptData):
            put(store, target[0], *delta_file(other, target))

        assert names(tmp_path) == before
        assert fetched_manifest(store) == layout(snapshots[1], 1)[0]


def test_bits_that_differ_from_the_manifest_are_refused(tmp_path: Path) -> None:
    manifest, _ = layout(snapshot(0), 0)
    with open_test_store(tmp_path) as store:
        with raises_code(CorruptData, "weights.hash_mismatch", "'norm.weight'"):
            put(store, manifest, *full_file(*layout(snapshot(1), 0)))

        assert store.notices(POLICY) == ()
        assert names(tmp_path) == []


def test_policies_can_be_listed_while_another_one_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = PolicyId("verifier")
    records = vars(History)["records"].fget
    with open_test_store(tmp_path) as store:
        put_full(store, snapshot(0), 0)

        def publish_meanwhile(history: History) -> tuple[Record, ...]:
            """Does what another thread may do at any time."""
            monkeypatch.undo()
            manifest, buffer = layout(snapshot(1), 0, policy=other)
            assert put(store, manifest, *full_file(manifest, buffer))
            return records(history)  # type: ignore[no-any-return]  # (mypy does not know the type of a getter)

        monkeypatch.setattr(History, "records", property(publish_meanwhile))

        assert list(store.policies) == [POLICY]
        assert list(store.policies) == [POLICY, other]


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    manifest, buffer = layout(snapshot(0), 0)
    transfer, data = full_file(manifest, buffer)
    with open_test_store(tmp_path) as store, raises_code(CorruptData, "weights.incomplete_file"):
        put(store, manifest, transfer, data[:-7])


def test_an_inconsistent_manifest_is_refused_before_any_upload(tmp_path: Path) -> None:
    manifest, buffer = layout(snapshot(0), 0)
    transfer, _ = full_file(manifest, buffer)
    with open_test_store(tmp_path, WeightsConfig(max_version_bytes=buffer.nbytes - 1)) as store:
        with raises_code(CorruptData, "weights.invalid_manifest", "limit"):
            store.begin_upload(manifest, transfer)
        assert not (tmp_path / POLICY).exists()
    with open_test_store(tmp_path) as store:
        with raises_code(CorruptData, "weights.invalid_manifest", "root hash"):
            store.begin_upload(replace(manifest, root_hash=bytes(32)), transfer)
        assert not (tmp_path / POLICY).exists()


def test_a_full_publish_by_a_restarted_trainer_is_served_as_a_delta(tmp_path: Path) -> None:
    snapshots = history(2)
    with open_test_store(tmp_path) as store:
        put_full(store, snapshots[0], 0)
        put_full(store, snapshots[1], 1)

        (transfer,) = store.plan(POLICY, have=Version(0), want=None).transfers

        assert transfer.kind is TransferKind.DELTA
        assert transfer.size_bytes < store.notices(POLICY)[-1].full_bytes / 5
        assert fetched_manifest(store, have=layout(snapshots[0], 0)) == layout(snapshots[1], 1)[0]


def test_changed_tensors_are_served_in_full(tmp_path: Path) -> None:
    first = snapshot()
    second = {name: value for name, value in first.items() if name != "half"}
    with open_test_store(tmp_path) as store:
        put_full(store, first, 0)
        put_full(store, second, 1)

        assert [transfer.kind for transfer in store.plan(POLICY, have=Version(0), want=None).transfers] == [
            TransferKind.FULL
        ]
        assert fetched_manifest(store) == layout(second, 1)[0]


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("failing", range(6))
def test_a_full_disk_refuses_a_publish_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failing: int
) -> None:
    """Fills the disk at each write: a publish is refused or stored as a whole, and the next one works."""
    snapshots = history(3)
    real = getattr(os, call)
    calls = 0

    def full(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls > failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with open_test_store(tmp_path) as store:
        put_all(store, snapshots[:2])
        before = names(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            try:
                assert put_full(store, snapshots[2], 2)
            except StorageFull:
                assert names(tmp_path) == before
                assert fetched_manifest(store) == layout(snapshots[1], 1)[0]

        put_full(store, snapshots[2], 2)
        assert fetched_manifest(store) == layout(snapshots[2], 2)[0]
    with open_test_store(tmp_path) as store:
        assert fetched_manifest(store) == layout(snapshots[2], 2)[0]
        assert not [name for name in names(tmp_path) if name.endswith((".part", ".damaged"))]


def test_policies_are_stored_separately(tmp_path: Path) -> None:
    others = [PolicyId("verifier"), PolicyId("a/b:c.d")]
    with open_test_store(tmp_path) as store:
        put_full(store, snapshot(0), 0)
        for index, policy in enumerate(others):
            manifest, buffer = layout(snapshot(index + 1), 7, policy=policy)
            put(store, manifest, *full_file(manifest, buffer))
    with open_test_store(tmp_path) as store:
        assert store.notices(POLICY)[0].version == 0
        for policy in others:
            assert store.notices(policy)[0].version == 7
        with raises_code(UnknownPolicy, "weights.policy_not_published", "a/b:c.d, solver, verifier"):
            store.plan(PolicyId("unknown"), have=None, want=None)


def test_notices_have_the_sizes_of_a_version(tmp_path: Path) -> None:
    snapshots = history(2)
    with open_test_store(tmp_path) as store:
        put_all(store, snapshots)

        first, second = store.notices(POLICY)

        manifest, buffer = layout(snapshots[1], 1)
        assert (first.delta_bytes, second.full_bytes) == (0, buffer.nbytes)
        assert second.root_hash == manifest.root_hash
        assert second.delta_bytes == delta_file(layout(snapshots[0], 0), (manifest, buffer))[0].size_bytes
        assert store.notices(POLICY, after=Version(0)) == (second,)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with (
        open_test_store(tmp_path),
        raises_code(InvalidInput, "storage.in_use"),
        open_test_store(tmp_path),
    ):
        pass


def test_an_unusable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with (
        pytest.raises(InvalidInput) as caught,
        open_store(tmp_path / "file" / "below", WeightsConfig()),
    ):
        pass
    assert caught.value.code == "storage.folder_unusable"


def test_a_transfer_with_another_hash_is_unknown(tmp_path: Path) -> None:
    with open_test_store(tmp_path) as store:
        put_all(store, history(2))
        (transfer,) = store.plan(POLICY, have=None, want=None).transfers

        read(store, transfer)
        with pytest.raises(UnknownVersion) as caught:
            store.open(replace(transfer, hash=bytes(32)))
        assert caught.value.code == "weights.file_removed"


def test_dense_updates_have_small_deltas(tmp_path: Path) -> None:
    first = snapshot()
    second = stepped(first, 1, density=0.95)
    with open_test_store(tmp_path) as store:
        put_full(store, first, 0)
        put_full(store, second, 1)

        assert fetched_manifest(store, have=layout(first, 0)) == layout(second, 1)[0]
        assert store.notices(POLICY)[-1].delta_bytes < store.notices(POLICY)[-1].full_bytes / 2


@pytest.mark.parametrize(("kind", "is_durable"), [("disk", True), ("memory", False)])
def test_notices_say_whether_a_version_is_durable(tmp_path: Path, kind: str, is_durable: bool) -> None:
    with open_test_store(tmp_path, WeightsConfig(storage={"kind": kind})) as store:
        put_full(store, snapshot(), 0)
        (notice,) = store.notices(POLICY)
    assert from_message(to_message(notice, weight_plane_pb2.VersionNotice), VersionNotice).is_durable is is_durable
