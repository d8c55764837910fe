from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable, UnknownVersion
from astraflow.contract.ids import Version
from astraflow.weights.config import WeightsConfig
from astraflow.weights.keeping import keeps, s3
from astraflow.weights.keeping.base import Keep
from tests.suites.keep_suite import NAME, POLICY, KeepSuite, OpenKeep
from tests.weights.buckets import bucket_service, make_bucket
from tests.weights.shelves import got, put_all, put_full, shelf
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
    """A bucket of its own for each test."""
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


class TestS3(KeepSuite):
    @pytest.fixture
    def open_keep(self, tmp_path: Path, spec: dict[str, Any]) -> OpenKeep:
        @contextmanager
        def opened() -> Iterator[Keep]:
            yield keeps.build(spec, tmp_path)

        return opened

    def test_an_object_that_is_removed_while_it_is_read_is_unknown(self, open_keep: OpenKeep) -> None:
        with open_keep() as keep:
            folder = keep.folder(POLICY)
            folder.write(NAME, bytes(3 * s3.AHEAD_BYTES))
            source = folder.open(NAME)
            source.read(0, 10)
            folder.remove([NAME])

            with pytest.raises(UnknownVersion, match="plan the transfer again"):
                source.read(2 * s3.AHEAD_BYTES, 10)


def test_stores_with_other_prefixes_do_not_see_each_other(tmp_path: Path, spec: dict[str, Any]) -> None:
    keeps.build(spec, tmp_path).folder(POLICY).write(NAME, b"data")

    assert list(keeps.build({**spec, "prefix": "runs/2"}, tmp_path).policies()) == []


def test_a_store_in_a_bucket_is_back_on_another_machine(tmp_path: Path, spec: dict[str, Any]) -> None:
    config = WeightsConfig(keep_in=spec, keep_versions=4, anchor_every=3)
    with shelf(tmp_path / "one", config) as store:
        put_all(store, SNAPSHOTS)
    with shelf(tmp_path / "other", config) as store:
        assert [notice.version for notice in store.notices(SOLVER)] == [3, 4, 5, 6]
        for notice in store.notices(SOLVER):
            assert got(store, want=notice.version) == layout(SNAPSHOTS[notice.version], notice.version)[0]
        assert got(store, have=layout(SNAPSHOTS[4], 4)) == layout(SNAPSHOTS[6], 6)[0]


def killed(directory: Path, spec: dict[str, Any]) -> Keep:
    """A place whose store did not stop in good order."""
    directory.mkdir()
    keep: Keep = keeps.build(spec, directory)
    keep.claim()
    return keep


def test_a_prefix_that_another_store_uses_is_refused_with_what_to_do(tmp_path: Path, spec: dict[str, Any]) -> None:
    killed(tmp_path / "one", spec).folder(SOLVER).write(NAME, b"data")

    refusal = r"used by another weight store, on .*: stop that one, or give this one a prefix.*`take_over = true`"
    with pytest.raises(InvalidInput, match=refusal), shelf(tmp_path / "two", WeightsConfig(keep_in=spec)):
        pass
    with shelf(tmp_path / "two", WeightsConfig(keep_in={**spec, "prefix": "runs/2"})):
        pass


def test_a_store_that_was_killed_goes_on_with_its_prefix(tmp_path: Path, spec: dict[str, Any]) -> None:
    killed(tmp_path / "one", spec)
    with shelf(tmp_path / "one", WeightsConfig(keep_in=spec)) as store:
        put_full(store, SNAPSHOTS[0], 0)


def test_a_store_that_was_taken_for_dead_changes_nothing_any_more(tmp_path: Path, spec: dict[str, Any]) -> None:
    with shelf(tmp_path / "one", WeightsConfig(keep_in=spec)) as stale:
        put_full(stale, SNAPSHOTS[0], 0)
        with shelf(tmp_path / "two", WeightsConfig(keep_in={**spec, "take_over": True})) as store:
            assert got(store) == layout(SNAPSHOTS[0], 0)[0]
            with pytest.raises(Conflict, match="taken over by the weight store on"):
                put_full(stale, SNAPSHOTS[1], 1)
            put_full(store, SNAPSHOTS[2], 1)
            assert got(store) == layout(SNAPSHOTS[2], 1)[0]
            assert got(stale) == layout(SNAPSHOTS[0], 0)[0]
        with pytest.raises(Conflict, match="taken over by another weight store, which left"):
            put_full(stale, SNAPSHOTS[1], 1)


def test_a_claim_that_cannot_be_read_is_somebody_elses(tmp_path: Path, spec: dict[str, Any]) -> None:
    keep = killed(tmp_path / "one", spec)
    assert isinstance(keep, s3.S3Keep)
    s3.S3ClaimObject(keep._library, keep._store, "").write(b"?")
    with (
        pytest.raises(InvalidInput, match="on an unknown host"),
        shelf(tmp_path / "one", WeightsConfig(keep_in=spec)),
    ):
        pass


def test_a_file_without_a_record_is_no_version(tmp_path: Path, spec: dict[str, Any]) -> None:
    config = WeightsConfig(keep_in=spec)
    with shelf(tmp_path, config) as store:
        put_all(store, SNAPSHOTS[:2])
    folder = keeps.build(spec, tmp_path).folder(SOLVER)
    folder.write("0000000002.delta", b"sent, and then the store died")
    with shelf(tmp_path, config) as store:
        assert [notice.version for notice in store.notices(SOLVER)] == [0, 1]
        assert "0000000002.delta" not in folder.sizes()


def test_a_damaged_object_is_put_aside(tmp_path: Path, spec: dict[str, Any]) -> None:
    config = WeightsConfig(keep_in=spec)
    with shelf(tmp_path, config) as store:
        put_all(store, SNAPSHOTS[:3])
    folder = keeps.build(spec, tmp_path).folder(SOLVER)
    folder.write("0000000002.delta", bytes(folder.sizes()["0000000002.delta"]))
    with shelf(tmp_path, config) as store:
        assert got(store) == layout(SNAPSHOTS[1], 1)[0]
    assert "0000000002.delta.damaged" in folder.sizes()


@pytest.mark.parametrize("failing", range(3))
def test_a_refused_upload_loses_nothing_and_the_next_try_works(
    tmp_path: Path, spec: dict[str, Any], failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever upload of a version and its anchor is refused."""
    left = iter(range(failing))
    write = s3.S3Folder.write

    def refused(folder: s3.S3Folder, name: str, data: bytes | memoryview) -> None:
        if next(left, None) is None:
            raise Unavailable("the bucket cannot be used")
        write(folder, name, data)

    config = WeightsConfig(keep_in=spec, anchor_every=1)
    with shelf(tmp_path, config) as store:
        put_full(store, SNAPSHOTS[0], 0)
        with monkeypatch.context() as patched:
            patched.setattr(s3.S3Folder, "write", refused)
            try:
                put_full(store, SNAPSHOTS[1], 1)
            except Unavailable:
                assert got(store) == layout(SNAPSHOTS[0], 0)[0]
                assert "0000000001.record" not in keeps.build(spec, tmp_path).folder(SOLVER).sizes()
        put_full(store, SNAPSHOTS[1], 1)
        assert got(store) == layout(SNAPSHOTS[1], 1)[0]
    with shelf(tmp_path, config) as store:
        assert got(store, have=layout(SNAPSHOTS[0], 0)) == layout(SNAPSHOTS[1], 1)[0]


def test_a_bucket_that_is_not_there_is_named(tmp_path: Path, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="no bucket at s3://absent/"):
        keeps.build({**spec, "bucket": "absent"}, tmp_path).policies()


def test_a_service_that_cannot_be_reached_is_unavailable(tmp_path: Path, spec: dict[str, Any]) -> None:
    keep = keeps.build({**spec, "endpoint": "http://127.0.0.1:9"}, tmp_path)

    with pytest.raises(Unavailable, match="cannot be used"):
        keep.policies()
    with pytest.raises(Unavailable):
        keep.folder(POLICY).write(NAME, b"data")


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(s3, "import_module", absent)
    with pytest.raises(InvalidInput, match=r"pip install 'astraflow\[s3\]'"):
        keeps.build({"kind": "s3", "bucket": "b"}, tmp_path)


def test_the_newest_version_is_served_while_the_bucket_is_away(
    tmp_path: Path, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise Unavailable("the bucket cannot be used")

    with shelf(tmp_path, WeightsConfig(keep_in=spec, anchor_every=100)) as store:
        put_all(store, SNAPSHOTS[:3])
        monkeypatch.setattr(s3.S3Folder, "open", away)

        assert got(store) == layout(SNAPSHOTS[2], 2)[0]
        with pytest.raises(Unavailable):
            got(store, have=layout(SNAPSHOTS[1], 1), want=Version(2))
