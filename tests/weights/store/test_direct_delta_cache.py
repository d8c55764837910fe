"""Direct deltas across several versions."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import CorruptData, UnknownVersion
from astraflow.contract.ids import Version
from astraflow.contract.weights import TransferKind
from astraflow.weights.codec.chunks import transfer_of
from astraflow.weights.codec.delta import Level, encode_delta
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.direct_delta_cache import DirectDelta, DirectDeltaCache
from astraflow.weights.store.store import WeightStore
from tests.weights.stored_versions import fetched_manifest, open_test_store, put_all, put_full, read
from tests.weights.versions import POLICY, history, layout

CONFIG = WeightsConfig(retained_versions=12, full_snapshot_every=3, direct_delta_min_chain=2)
SNAPSHOTS = history(9)
VERSIONS = [layout(tensors, version) for version, tensors in enumerate(SNAPSHOTS)]


def _shorten(store: WeightStore, have: int | None, want: int | None = None) -> bool:
    """Waits for a direct delta; returns whether one was being made."""
    making = store.prepare_direct_delta(
        POLICY, have=None if have is None else Version(have), want=None if want is None else Version(want)
    )
    if making is None:
        return False
    making.result(timeout=60)
    return True


@pytest.mark.parametrize("have", [0, 1, 4, 6])
def test_a_reader_far_behind_gets_one_delta_smaller_than_the_chain(tmp_path: Path, have: int) -> None:
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS)
        chain = store.plan(POLICY, have=Version(have), want=None)

        assert _shorten(store, have)

        plan = store.plan(POLICY, have=Version(have), want=None)
        assert [(file.base, file.target) for file in plan.transfers] == [(have, 8)]
        assert plan.size_bytes < chain.size_bytes
        assert (
            read(store, plan.transfers[0]).tobytes()
            == encode_delta(*VERSIONS[have], *VERSIONS[8], level=Level.DENSE).data
        )
        assert fetched_manifest(store, have=VERSIONS[have]) == VERSIONS[8][0]


def test_no_direct_delta_is_made_without_a_gain(tmp_path: Path) -> None:
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS)

        assert not _shorten(store, 7), "a single delta is enough"
        assert not _shorten(store, 8), "it has the newest version"
        assert not _shorten(store, None), "it has no version"
        assert not _shorten(store, 99), "its version is unknown"
        assert not _shorten(store, 0, want=5), "only the newest version is in memory"
        with pytest.raises(UnknownVersion):
            _shorten(store, 0, want=77)


def test_a_direct_delta_to_an_older_version_is_extended_by_the_chain(tmp_path: Path) -> None:
    with open_test_store(
        tmp_path, WeightsConfig(retained_versions=12, full_snapshot_every=3, direct_delta_min_chain=3)
    ) as store:
        put_all(store, SNAPSHOTS[:8])
        _shorten(store, 0)
        put_full(store, SNAPSHOTS[8], 8)

        assert not _shorten(store, 0)

        segments = store.plan(POLICY, have=Version(0), want=None).transfers
        assert [(file.base, file.target) for file in segments] == [(0, 7), (7, 8)]
        assert fetched_manifest(store, have=VERSIONS[0]) == VERSIONS[8][0]


def test_a_change_of_tensors_on_the_way_requires_a_full_snapshot(tmp_path: Path) -> None:
    other = {name: value for name, value in SNAPSHOTS[2].items() if name != "half"}
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS[:2])
        put_full(store, other, 2)

        assert not _shorten(store, 0)
        assert [file.kind for file in store.plan(POLICY, have=Version(0), want=None).transfers] == [TransferKind.FULL]


def test_a_direct_delta_no_smaller_than_the_snapshot_is_not_cached(tmp_path: Path) -> None:
    strangers = [history(1, seed=seed)[0] for seed in (0, 100, 200)]
    with open_test_store(tmp_path, CONFIG) as store:
        for version, tensors in enumerate(strangers):
            put_full(store, tensors, version)
        _shorten(store, 0)

        assert [file.kind for file in store.plan(POLICY, have=Version(0), want=None).transfers] == [TransferKind.FULL]


def test_a_damaged_file_prevents_the_direct_delta_but_not_the_chain(tmp_path: Path) -> None:
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS)
        path = tmp_path / POLICY / "0000000003.full"
        path.write_bytes(bytes(path.stat().st_size))

        _shorten(store, 4)

        segments = store.plan(POLICY, have=Version(4), want=None).transfers
        assert [(file.base, file.target) for file in segments] == [(4, 5), (5, 6), (6, 7), (7, 8)]


def test_an_evicted_direct_delta_is_unknown_after_a_restart(tmp_path: Path) -> None:
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS)
        _shorten(store, 0)
        (direct,) = store.plan(POLICY, have=Version(0), want=None).transfers
    with open_test_store(tmp_path, CONFIG) as store:
        with pytest.raises(UnknownVersion) as caught:
            store.open(direct)
        assert caught.value.code == "weights.file_removed"

        assert fetched_manifest(store, have=VERSIONS[0]) == VERSIONS[8][0]

        _shorten(store, 0)
        assert store.plan(POLICY, have=Version(0), want=None).transfers == (direct,), "the same bytes, the same name"


def test_a_direct_delta_with_another_hash_is_unknown(tmp_path: Path) -> None:
    with open_test_store(tmp_path, CONFIG) as store:
        put_all(store, SNAPSHOTS)
        _shorten(store, 0)
        (direct,) = store.plan(POLICY, have=Version(0), want=None).transfers

        with pytest.raises(UnknownVersion):
            store.open(replace(direct, hash=bytes(32)))


def _direct(size_bytes: int, base: int = 0, target: int = 9) -> DirectDelta:
    data = bytes(size_bytes)
    return DirectDelta(transfer=transfer_of(layout(SNAPSHOTS[0], target)[0], data, base=Version(base)), data=data)


@pytest.fixture
def direct_delta_cache(request: pytest.FixtureRequest) -> DirectDeltaCache:
    cache = DirectDeltaCache(count=3, size_bytes=100)
    request.addfinalizer(cache.close)
    return cache


def _bases(direct_delta_cache: DirectDeltaCache) -> list[int]:
    return [int(leg.base) for leg in direct_delta_cache.segments(POLICY) if leg.base is not None]


def _make(direct_delta_cache: DirectDeltaCache, base: int, size_bytes: int, target: int = 9) -> None:
    direct_delta = _direct(size_bytes, base, target)
    direct_delta_cache.make(POLICY, Version(base), Version(target), lambda: direct_delta).result(timeout=10)


def test_the_least_recently_planned_deltas_are_evicted_by_count_and_bytes(direct_delta_cache: DirectDeltaCache) -> None:
    for base in (1, 2, 3):
        _make(direct_delta_cache, base, 10)
    direct_delta_cache.transfer(POLICY, Version(1), Version(9))

    _make(direct_delta_cache, 4, 10)
    assert _bases(direct_delta_cache) == [3, 1, 4]

    _make(direct_delta_cache, 5, 85)
    assert _bases(direct_delta_cache) == [4, 5]

    _make(direct_delta_cache, 6, 1000)
    assert _bases(direct_delta_cache) == [6], "the newest stays, whatever its size"


def test_concurrent_requests_make_a_delta_once(direct_delta_cache: DirectDeltaCache) -> None:
    encoded_bases: list[int] = []
    gate = threading.Event()

    def work() -> DirectDelta:
        gate.wait(10)
        encoded_bases.append(1)
        return _direct(10)

    futures = [direct_delta_cache.make(POLICY, Version(0), Version(9), work) for _ in range(5)]
    gate.set()
    for future in futures:
        future.result(timeout=10)
    direct_delta_cache.make(POLICY, Version(0), Version(9), work).result(timeout=10)

    assert encoded_bases == [1]


def test_a_failed_delta_is_retried_only_for_another_version(
    direct_delta_cache: DirectDeltaCache,
) -> None:
    tries: list[int] = []

    def work() -> DirectDelta | None:
        tries.append(1)
        raise CorruptData("damaged")

    for target in (9, 9, 10):
        direct_delta_cache.make(POLICY, Version(0), Version(target), work).result(timeout=10)

    assert len(tries) == 2
    assert _bases(direct_delta_cache) == []


def test_no_delta_is_made_with_a_cache_size_of_zero() -> None:
    direct_delta_cache = DirectDeltaCache(count=0, size_bytes=100)
    _make(direct_delta_cache, 1, 10)
    direct_delta_cache.close()

    assert _bases(direct_delta_cache) == []
