from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from astraflow.contract.errors import InvalidInput
from astraflow.weights.config import WeightsConfig
from astraflow.weights.keeping import keeps
from astraflow.weights.keeping.base import Keep
from astraflow.weights.keeping.memory import MemoryKeep, MemoryOptions
from astraflow.weights.shared import PREFIX, SHARED_FOLDER
from tests.suites.keep_suite import NAME, POLICY, KeepSuite, OpenKeep
from tests.weights.shelves import got, put_all, shelf
from tests.weights.versions import history, layout


def _places() -> set[Path]:
    return set(SHARED_FOLDER.glob(f"{PREFIX}store-*"))


class TestMemory(KeepSuite):
    @pytest.fixture
    def open_keep(self, tmp_path: Path) -> Iterator[OpenKeep]:
        @contextmanager
        def opened() -> Iterator[Keep]:
            yield keeps.build({"kind": "memory"}, tmp_path)

        yield opened
        MemoryKeep(MemoryOptions(), tmp_path).close()

    def test_nothing_is_on_the_disk_and_the_log_says_so(self, tmp_path: Path, open_keep: OpenKeep) -> None:
        with capture_logs() as logs, open_keep() as keep:
            keep.folder(POLICY).write(NAME, b"data")

            assert list(tmp_path.iterdir()) == []
            assert not keep.is_durable
        assert [line["log_level"] for line in logs if line["event"] == "weights_are_kept_in_memory_only"] == ["warning"]

    def test_stores_of_other_directories_have_places_of_their_own(self, tmp_path: Path, open_keep: OpenKeep) -> None:
        other = MemoryKeep(MemoryOptions(), tmp_path / "other")
        with open_keep() as keep:
            other.folder(POLICY).write(NAME, b"data")
            assert dict(keep.folder(POLICY).sizes()) == {}
        other.close()

    def test_stopping_in_good_order_frees_the_memory(self, tmp_path: Path) -> None:
        before = _places()
        keep = MemoryKeep(MemoryOptions(), tmp_path)
        keep.folder(POLICY).write(NAME, b"data")
        (made,) = _places() - before

        keep.close()

        assert not made.exists()

    def test_a_place_that_others_could_write_is_refused(self, tmp_path: Path) -> None:
        before = _places()
        MemoryKeep(MemoryOptions(), tmp_path)
        (made,) = _places() - before
        made.chmod(0o777)

        with pytest.raises(InvalidInput, match="of this user alone"):
            MemoryKeep(MemoryOptions(), tmp_path)
        made.rmdir()


def test_a_store_in_memory_serves_like_one_on_disk(tmp_path: Path) -> None:
    snapshots = history(6)
    with shelf(tmp_path, WeightsConfig(keep_in={"kind": "memory"}, keep_versions=3, anchor_every=2)) as store:
        put_all(store, snapshots)

        assert got(store, have=layout(snapshots[4], 4)) == layout(snapshots[5], 5)[0]
        assert got(store) == layout(snapshots[5], 5)[0]
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
