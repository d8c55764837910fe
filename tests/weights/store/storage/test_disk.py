import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from astraflow.contract.errors import StorageFull
from astraflow.testing.storage import NAME, POLICY, OpenStorage, StorageSuite
from astraflow.weights.store.storage import storages
from astraflow.weights.store.storage.base import WeightStorage


class TestDisk(StorageSuite):
    @pytest.fixture
    def open_storage(self, tmp_path: Path) -> OpenStorage:
        @contextmanager
        def opened() -> Iterator[WeightStorage]:
            yield storages.build({"kind": "disk"}, tmp_path)

        return opened

    def test_partially_written_files_are_removed_at_the_next_start(
        self, tmp_path: Path, open_storage: OpenStorage
    ) -> None:
        with open_storage() as storage:
            storage.folder(POLICY).write(NAME, b"data")
            (folder,) = tmp_path.iterdir()
            (folder / "0123.part").write_bytes(b"half")
            assert dict(storage.folder(POLICY).sizes()) == {NAME: 4}
        with open_storage() as storage:
            assert sorted(path.name for path in folder.iterdir()) == [NAME]

    @pytest.mark.parametrize("call", ["write", "fsync", "mkdir"])
    def test_a_full_disk_leaves_the_storage_unchanged(
        self, tmp_path: Path, open_storage: OpenStorage, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with open_storage() as storage:
            monkeypatch.setattr(os, call, full)
            with pytest.raises(StorageFull) as caught:
                storage.folder(POLICY).write(NAME, b"data")
            assert caught.value.code == "storage.disk_full"
            monkeypatch.undo()

            assert dict(storage.folder(POLICY).sizes()) == {}
