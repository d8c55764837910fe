"""Contract tests of every storage backend of the weight store."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import PolicyId
from astraflow.weights.store.storage.base import Folder, WeightStorage

POLICY = PolicyId("a/b:c.d")
NAME = "0000000007.full"
BYTES = np.random.default_rng(0).integers(0, 256, 40 * 2**20 + 17, dtype=np.uint8).data
"""More than one request, part or read transfers."""

OpenStorage = Callable[[], AbstractContextManager[WeightStorage]]


class StorageSuite:
    """Tests to inherit. Fixture to provide: `open_storage`, which opens the same storage each time, as a starting store
    does; leaving the block leaves the storage as after a kill of the store."""

    def test_a_new_storage_is_empty(self, open_storage: OpenStorage) -> None:
        with open_storage() as storage:
            assert list(storage.policies()) == []
            assert dict(storage.folder(POLICY).sizes()) == {}

    def test_a_file_is_read_from_any_offset(self, open_storage: OpenStorage) -> None:
        with open_storage() as storage:
            folder = storage.folder(POLICY)
            folder.write(NAME, BYTES)

            source = folder.open(NAME)
            assert bytes(source.read(0, len(BYTES))) == BYTES
            assert bytes(source.read(5, 10)) == BYTES[5:15]
            assert bytes(source.read(len(BYTES) - 3, 10)) == BYTES[-3:]
            assert bytes(source.read(len(BYTES), 10)) == b""
            assert b"".join(bytes(source.read(offset, 2**20)) for offset in range(3, len(BYTES), 2**20)) == bytes(
                BYTES[3:]
            )
            source.close()

    def test_files_survive_a_kill(self, open_storage: OpenStorage) -> None:
        with open_storage() as storage:
            storage.folder(POLICY).write(NAME, b"data")
            storage.folder(PolicyId("other")).write(NAME, b"")
        with open_storage() as storage:
            assert list(storage.policies()) == [POLICY, "other"]
            assert dict(storage.folder(POLICY).sizes()) == {NAME: 4}
            assert dict(storage.folder(PolicyId("other")).sizes()) == {NAME: 0}
            assert _read(storage.folder(POLICY), NAME) == b"data"

    def test_writing_again_replaces_a_file(self, open_storage: OpenStorage) -> None:
        with open_storage() as storage:
            folder = storage.folder(POLICY)
            folder.write(NAME, b"old and longer")
            folder.write(NAME, b"new")

            assert dict(folder.sizes()) == {NAME: 3}
            assert _read(folder, NAME) == b"new"

    def test_a_read_only_buffer_can_be_written(self, open_storage: OpenStorage) -> None:
        bits = np.arange(100, dtype=np.uint8)
        bits.flags.writeable = False
        with open_storage() as storage:
            storage.folder(POLICY).write(NAME, bits.data[10:20])

            assert _read(storage.folder(POLICY), NAME) == bytes(range(10, 20))

    def test_a_renamed_file_has_only_the_new_name(self, open_storage: OpenStorage) -> None:
        with open_storage() as storage:
            folder = storage.folder(POLICY)
            folder.write(NAME, b"data")
            folder.write(f"{NAME}.damaged", b"an older one")
            folder.rename(NAME, f"{NAME}.damaged")

            assert dict(folder.sizes()) == {f"{NAME}.damaged": 4}
            assert _read(folder, f"{NAME}.damaged") == b"data"

    def test_removing_files_is_idempotent(self, open_storage: OpenStorage) -> None:
        with open_storage() as storage:
            folder = storage.folder(POLICY)
            folder.remove([NAME])
            for name in (NAME, "0000000008.delta", "0000000008.record"):
                folder.write(name, b"data")

            folder.remove([NAME, "0000000008.delta", NAME])

            assert dict(folder.sizes()) == {"0000000008.record": 4}
            with pytest.raises(UnknownVersion):
                folder.open(NAME)


def _read(folder: Folder, name: str) -> bytes:
    source = folder.open(name)
    data = bytes(source.read(0, 1000))
    source.close()
    return data
