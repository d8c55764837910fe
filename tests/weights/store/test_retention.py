from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype, Manifest, TensorSpec, Transfer, TransferKind
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.history import first_retained, is_full_snapshot_due
from astraflow.weights.store.records import Record
from tests.weights.stored_versions import fetched_manifest, names, open_test_store, put_all
from tests.weights.versions import POLICY, history, layout

FULL_BYTES = 100


def record(version: int, *, delta_bytes: int | None = 10, is_anchor: bool = False) -> Record:
    tensor = TensorSpec(name="w", dtype=Dtype.FLOAT8_E4M3, shape=(FULL_BYTES,), offset=0, hash=bytes(32))
    manifest = Manifest(policy=PolicyId("p"), version=Version(version), tensors=(tensor,), root_hash=bytes(32))
    files = []
    if delta_bytes is not None:
        files.append(_file(version, version - 1, delta_bytes))
    if is_anchor:
        files.append(_file(version, None, FULL_BYTES))
    return Record(manifest=manifest, files=tuple(files), published_at=0.0)


def _file(target: int, base: int | None, size_bytes: int) -> Transfer:
    return Transfer(
        kind=TransferKind.FULL if base is None else TransferKind.DELTA,
        policy=PolicyId("p"),
        target=Version(target),
        base=None if base is None else Version(base),
        size_bytes=size_bytes,
        hash=bytes(32),
    )


def records(count: int, *, anchors: set[int], delta_bytes: int = 10) -> list[Record]:
    return [record(v, delta_bytes=delta_bytes if v else None, is_anchor=v in anchors or v == 0) for v in range(count)]


def test_the_history_starts_at_the_anchor_of_the_oldest_retained_version() -> None:
    kept = records(12, anchors={4, 8})

    assert first_retained(kept, WeightsConfig(retained_versions=3)) == 8
    assert first_retained(kept, WeightsConfig(retained_versions=5)) == 4
    assert first_retained(kept, WeightsConfig(retained_versions=40)) == 0


@pytest.mark.parametrize(
    ("max_retained_bytes", "first"),
    [(None, 0), (410, 0), (409, 4), (280, 4), (279, 8), (140, 8), (1, 8)],
)
def test_older_anchors_and_their_deltas_are_removed_above_the_byte_limit(
    max_retained_bytes: int | None, first: int
) -> None:
    kept = records(12, anchors={4, 8})  # three full files of 100, eleven deltas of 10

    assert first_retained(kept, WeightsConfig(max_retained_bytes=max_retained_bytes)) == first


def test_an_anchor_is_due_after_the_configured_versions() -> None:
    config = WeightsConfig(full_snapshot_every=4)

    assert not is_full_snapshot_due(records(4, anchors=set()), config)
    assert is_full_snapshot_due(records(5, anchors=set()), config)
    assert not is_full_snapshot_due(records(5, anchors={4}), config)


def test_an_anchor_is_due_earlier_when_deltas_exceed_the_byte_limit() -> None:
    kept = records(4, anchors=set())  # 130 bytes

    assert is_full_snapshot_due(kept, WeightsConfig(max_retained_bytes=129))
    assert not is_full_snapshot_due(kept, WeightsConfig(max_retained_bytes=130))
    assert not is_full_snapshot_due(kept, WeightsConfig(max_retained_bytes=99)), "it would also exceed the limit"


@pytest.mark.long
@given(
    anchors=st.sets(st.integers(0, 30)),
    delta_bytes=st.integers(1, 90),
    retained_versions=st.integers(2, 40),
    max_retained_bytes=st.none() | st.integers(1, 3000),
)
def test_retained_bytes_are_within_the_limit_or_minimal(
    anchors: set[int], delta_bytes: int, retained_versions: int, max_retained_bytes: int | None
) -> None:
    config = WeightsConfig(retained_versions=retained_versions, max_retained_bytes=max_retained_bytes)
    kept = records(31, anchors=anchors, delta_bytes=delta_bytes)

    first = first_retained(kept, config)

    def size_bytes(start: int) -> int:
        return sum(record.size_bytes for record in kept if record.version >= start)

    assert kept[first].full is not None
    fits = max_retained_bytes is None or size_bytes(first) <= max_retained_bytes
    assert fits or first == max({0, *anchors})
    older = [anchor for anchor in {0, *anchors} if anchor < first]
    if older and (max_retained_bytes is None or size_bytes(max(older)) <= max_retained_bytes):
        assert first <= 30 - retained_versions + 1, "no version that must be retained was removed"


def test_a_store_stays_within_its_byte_limit_and_serves_the_newest_version(tmp_path: Path) -> None:
    snapshots = history(12)
    full_bytes = layout(snapshots[0], 0)[0].size_bytes
    max_retained_bytes = int(1.5 * full_bytes)
    config = WeightsConfig(retained_versions=30, full_snapshot_every=30, max_retained_bytes=max_retained_bytes)
    with open_test_store(tmp_path, config) as store:
        put_all(store, snapshots)
        sizes = [(tmp_path / POLICY / name).stat().st_size for name in names(tmp_path) if "record" not in name]

        assert sum(sizes) <= max_retained_bytes
        assert [notice.version for notice in store.notices(POLICY)][-2:] == [10, 11]
    with open_test_store(tmp_path, config) as store:
        assert fetched_manifest(store) == layout(snapshots[11], 11)[0]


def test_a_limit_below_one_version_keeps_the_files_of_the_newest(tmp_path: Path) -> None:
    snapshots = history(5)
    with open_test_store(tmp_path, WeightsConfig(max_retained_bytes=1, full_snapshot_every=2)) as store:
        put_all(store, snapshots)

        assert [notice.version for notice in store.notices(POLICY)] == [4]
    with open_test_store(tmp_path) as store:
        assert fetched_manifest(store) == layout(snapshots[4], 4)[0]
