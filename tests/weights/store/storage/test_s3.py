import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from astraflow.archive.samples import find_trajectories
from astraflow.contract.errors import Conflict, InvalidInput, Unavailable, UnknownVersion
from astraflow.contract.ids import Version
from astraflow.contract.reports.queries import TrajectoryPage, TrajectoryQuery
from astraflow.testing.storage import NAME, POLICY, OpenStorage, StorageSuite
from astraflow.tracking.trajectory_export import TrajectoryExport, export_folder
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.storage import s3, storages
from astraflow.weights.store.storage.base import WeightStorage
from tests.errors import raises_code
from tests.fakes.recorded_run import fill, recorded_archive
from tests.weights.buckets import bucket_service, make_bucket
from tests.weights.stored_versions import fetched_manifest, open_test_store, put_all, put_full
from tests.weights.versions import POLICY as SOLVER
from tests.weights.versions import history, layout

SNAPSHOTS = history(7)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with bucket_service() as address:
        yield address


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def spec(service: str) -> dict[str, Any]:
    """Storage configuration with a separate bucket for each test."""
    bucket = f"weights-{uuid4().hex}"
    make_bucket(service, bucket)
    return {
        "kind": "s3",
        "bucket": bucket,
        "prefix": "runs/1",
        "endpoint": service,
        "region": "us-east-1",
        "retry_s": 0,
    }


class TestS3(StorageSuite):
    @pytest.fixture
    def open_storage(self, tmp_path: Path, spec: dict[str, Any]) -> OpenStorage:
        @contextmanager
        def opened() -> Iterator[WeightStorage]:
            yield storages.build(spec, tmp_path)

        return opened

    def test_an_object_that_is_removed_while_it_is_read_is_unknown(self, open_storage: OpenStorage) -> None:
        with open_storage() as storage:
            folder = storage.folder(POLICY)
            folder.write(NAME, bytes(3 * s3.READ_AHEAD_BYTES))
            source = folder.open(NAME)
            source.read(0, 10)
            folder.remove([NAME])

            with pytest.raises(UnknownVersion) as caught:
                source.read(2 * s3.READ_AHEAD_BYTES, 10)
            assert caught.value.code == "weights.file_removed"


def test_stores_with_different_prefixes_are_separate(tmp_path: Path, spec: dict[str, Any]) -> None:
    storages.build(spec, tmp_path).folder(POLICY).write(NAME, b"data")

    assert list(storages.build({**spec, "prefix": "runs/2"}, tmp_path).policies()) == []


@pytest.mark.long
def test_a_store_in_a_bucket_resumes_on_another_machine(tmp_path: Path, spec: dict[str, Any]) -> None:
    config = WeightsConfig(storage=spec, retained_versions=4, full_snapshot_every=3)
    with open_test_store(tmp_path / "one", config) as store:
        put_all(store, SNAPSHOTS)
    with open_test_store(tmp_path / "other", config) as store:
        assert [notice.version for notice in store.notices(SOLVER)] == [3, 4, 5, 6]
        for notice in store.notices(SOLVER):
            assert fetched_manifest(store, want=notice.version) == layout(SNAPSHOTS[notice.version], notice.version)[0]
        assert fetched_manifest(store, have=layout(SNAPSHOTS[4], 4)) == layout(SNAPSHOTS[6], 6)[0]


def killed(directory: Path, spec: dict[str, Any]) -> WeightStorage:
    """Returns storage whose store was not closed."""
    directory.mkdir()
    storage: WeightStorage = storages.build(spec, directory)
    storage.acquire()
    return storage


def test_a_prefix_owned_by_another_store_is_refused_with_advice(tmp_path: Path, spec: dict[str, Any]) -> None:
    killed(tmp_path / "one", spec).folder(SOLVER).write(NAME, b"data")

    second = open_test_store(tmp_path / "two", WeightsConfig(storage=spec))
    with raises_code(InvalidInput, "storage.owned_by_another_store", "`take_over = true`"), second:
        pass
    with open_test_store(tmp_path / "two", WeightsConfig(storage={**spec, "prefix": "runs/2"})):
        pass


def test_a_killed_store_resumes_with_its_prefix(tmp_path: Path, spec: dict[str, Any]) -> None:
    killed(tmp_path / "one", spec)
    with open_test_store(tmp_path / "one", WeightsConfig(storage=spec)) as store:
        put_full(store, SNAPSHOTS[0], 0)
        assert fetched_manifest(store) == layout(SNAPSHOTS[0], 0)[0]


def test_a_store_whose_prefix_was_taken_over_cannot_write(tmp_path: Path, spec: dict[str, Any]) -> None:
    with open_test_store(tmp_path / "one", WeightsConfig(storage=spec)) as stale:
        put_full(stale, SNAPSHOTS[0], 0)
        with open_test_store(tmp_path / "two", WeightsConfig(storage={**spec, "take_over": True})) as store:
            assert fetched_manifest(store) == layout(SNAPSHOTS[0], 0)[0]
            with pytest.raises(Conflict) as caught:
                put_full(stale, SNAPSHOTS[1], 1)
            assert caught.value.code == "storage.taken_over"
            put_full(store, SNAPSHOTS[2], 1)
            assert fetched_manifest(store) == layout(SNAPSHOTS[2], 1)[0]
            assert fetched_manifest(stale) == layout(SNAPSHOTS[0], 0)[0]
        with pytest.raises(Conflict) as caught:
            put_full(stale, SNAPSHOTS[1], 1)
        assert caught.value.code == "storage.taken_over"


def test_an_unreadable_ownership_object_counts_as_another_store(tmp_path: Path, spec: dict[str, Any]) -> None:
    storage = killed(tmp_path / "one", spec)
    assert isinstance(storage, s3.S3Storage)
    s3.S3OwnershipObject(storage._library, storage._store, "").write(b"?")
    with (
        raises_code(InvalidInput, "storage.owned_by_another_store"),
        open_test_store(tmp_path / "one", WeightsConfig(storage=spec)),
    ):
        pass


@pytest.mark.long
def test_a_file_without_a_record_is_not_a_version(tmp_path: Path, spec: dict[str, Any]) -> None:
    config = WeightsConfig(storage=spec)
    with open_test_store(tmp_path, config) as store:
        put_all(store, SNAPSHOTS[:2])
    folder = storages.build(spec, tmp_path).folder(SOLVER)
    folder.write("0000000002.delta", b"sent, and then the store died")
    with open_test_store(tmp_path, config) as store:
        assert [notice.version for notice in store.notices(SOLVER)] == [0, 1]
        assert "0000000002.delta" not in folder.sizes()


@pytest.mark.long
def test_a_damaged_object_is_set_aside(tmp_path: Path, spec: dict[str, Any]) -> None:
    config = WeightsConfig(storage=spec)
    with open_test_store(tmp_path, config) as store:
        put_all(store, SNAPSHOTS[:3])
    folder = storages.build(spec, tmp_path).folder(SOLVER)
    folder.write("0000000002.delta", bytes(folder.sizes()["0000000002.delta"]))
    with open_test_store(tmp_path, config) as store:
        assert fetched_manifest(store) == layout(SNAPSHOTS[1], 1)[0]
    assert "0000000002.delta.damaged" in folder.sizes()


@pytest.mark.long
@pytest.mark.parametrize("failing", range(3))
def test_a_failed_upload_loses_no_version_and_can_be_repeated(
    tmp_path: Path, spec: dict[str, Any], failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuses each upload of a version and its anchor in turn."""
    left = iter(range(failing))
    write = s3.S3Folder.write

    def refused(folder: s3.S3Folder, name: str, data: bytes | memoryview) -> None:
        if next(left, None) is None:
            raise Unavailable("the bucket cannot be used")
        write(folder, name, data)

    config = WeightsConfig(storage=spec, full_snapshot_every=1)
    with open_test_store(tmp_path, config) as store:
        put_full(store, SNAPSHOTS[0], 0)
        with monkeypatch.context() as patched:
            patched.setattr(s3.S3Folder, "write", refused)
            try:
                put_full(store, SNAPSHOTS[1], 1)
            except Unavailable:
                assert fetched_manifest(store) == layout(SNAPSHOTS[0], 0)[0]
                assert "0000000001.record" not in storages.build(spec, tmp_path).folder(SOLVER).sizes()
        put_full(store, SNAPSHOTS[1], 1)
        assert fetched_manifest(store) == layout(SNAPSHOTS[1], 1)[0]
    with open_test_store(tmp_path, config) as store:
        assert fetched_manifest(store, have=layout(SNAPSHOTS[0], 0)) == layout(SNAPSHOTS[1], 1)[0]


def test_a_missing_bucket_is_refused(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        storages.build({**spec, "bucket": "absent"}, tmp_path).policies()
    assert caught.value.code == "storage.no_bucket"


def test_an_unreachable_service_is_unavailable(tmp_path: Path, spec: dict[str, Any]) -> None:
    storage = storages.build({**spec, "endpoint": "http://127.0.0.1:9"}, tmp_path)

    with pytest.raises(Unavailable) as caught:
        storage.policies()
    assert caught.value.code == "storage.bucket_unreachable"
    with pytest.raises(Unavailable):
        storage.folder(POLICY).write(NAME, b"data")


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(s3, "import_module", absent)
    with raises_code(InvalidInput, "package.missing", "'astraflow[s3]'"):
        storages.build({"kind": "s3", "bucket": "b"}, tmp_path)


@pytest.mark.long
def test_the_newest_version_is_served_while_the_bucket_is_unreachable(
    tmp_path: Path, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise Unavailable("the bucket cannot be used")

    with open_test_store(tmp_path, WeightsConfig(storage=spec, full_snapshot_every=100)) as store:
        put_all(store, SNAPSHOTS[:3])
        monkeypatch.setattr(s3.S3Folder, "open", away)

        assert fetched_manifest(store) == layout(SNAPSHOTS[2], 2)[0]
        with pytest.raises(Unavailable):
            fetched_manifest(store, have=layout(SNAPSHOTS[1], 1), want=Version(2))


@pytest.mark.anyio
async def test_trajectories_are_exported_to_a_bucket(tmp_path: Path, spec: dict[str, Any]) -> None:
    archive = recorded_archive(tmp_path)
    fill(archive)

    async def find(query: TrajectoryQuery) -> TrajectoryPage:
        return await archive.read(lambda database: find_trajectories(database, query))

    to = f"s3://{spec['bucket']}/run"
    options = {name: spec[name] for name in ("endpoint", "region", "retry_s")}
    for _ in range(2):
        with export_folder(to, options, state=tmp_path) as folder:
            await TrajectoryExport(folder, find, location=to).export(now=0.0, is_over=True)
            (name,) = folder.sizes()
            lines = gzip.decompress(folder.open(name).read(0, 10**6)).splitlines()
    assert name == "000000000001-000000000009.jsonl.gz"
    assert [json.loads(line)["task"] for line in lines] == [
        f"train:{group}/{member}" for group in (1, 2, 3) for member in (0, 1, 2)
    ]
    archive.close()
