from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from astraflow.contract.errors import InvalidInput
from astraflow.testing.storage import NAME, POLICY, OpenStorage, StorageSuite
from astraflow.weights.config import WeightsConfig
from astraflow.weights.shared_memory import PREFIX, SHARED_FOLDER
from astraflow.weights.store.storage import storages
from astraflow.weights.store.storage.base import WeightStorage
from astraflow.weights.store.storage.memory import MemoryOptions, MemoryStorage
from tests.weights.stored_versions import fetched_manifest, open_test_store, put_all
from tests.weights.versions import history, layout


def _places() -> set[Path]:
    return set(SHARED_FOLDER.glob(f"{PREFIX}store-*"))


class TestMemory(StorageSuite):
    @pytest.fixture
    def open_storage(self, tmp_path: Path) -> Iterator[OpenStorage]:
        @contextmanager
        def opened() -> Iterator[WeightStorage]:
            yield storages.build({"kind": "memory"}, tmp_path)

        yield opened
        MemoryStorage(MemoryOptions(), tmp_path).close()

    def test_memory_storage_writes_no_files_and_logs_a_warning(self, tmp_path: Path, open_storage: OpenStorage) -> None:
        with capture_logs() as logs, open_storage() as storage:
            storage.folder(POLICY).write(NAME, b"data")

            assert list(tmp_path.iterdir()) == []
            assert not storage.is_durable
        assert [line["log_level"] for line in logs if line["event"] == "weights_stored_in_memory_only"] == ["warning"]

    def test_stores_of_different_directories_have_separate_storage(
        self, tmp_path: Path, open_storage: OpenStorage
    ) -> None:
        other = MemoryStorage(MemoryOptions(), tmp_path / "other")
        with open_storage() as storage:
            other.folder(POLICY).write(NAME, b"data")
            assert dict(storage.folder(POLICY).sizes()) == {}
        other.close()

    def test_closing_frees_the_memory(self, tmp_path: Path) -> None:
        before = _places()
        storage = MemoryStorage(MemoryOptions(), tmp_path)
        storage.folder(POLICY).write(NAME, b"data")
        (folder,) = _places() - before

        storage.close()

        assert not folder.exists()

    def test_a_folder_writable_by_others_is_refused(self, tmp_path: Path) -> None:
        before = _places()
        MemoryStorage(MemoryOptions(), tmp_path)
        (folder,) = _places() - before
        folder.chmod(0o777)

        with pytest.raises(InvalidInput) as caught:
            MemoryStorage(MemoryOptions(), tmp_path)
        assert caught.value.code == "storage.folder_unusable"
        folder.rmdir()


def test_a_store_in_memory_serves_versions(tmp_path: Path) -> None:
    snapshots = history(6)
    with open_test_store(
        tmp_path, WeightsConfig(storage={"kind": "memory"}, retained_versions=3, full_snapshot_every=2)
    ) as store:
        put_all(store, snapshots)

        assert fetched_manifest(store, have=layout(snapshots[4], 4)) == layout(snapshots[5], 5)[0]
        assert fetched_manifest(store) == layout(snapshots[5], 5)[0]
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
