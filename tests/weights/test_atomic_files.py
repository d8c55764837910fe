import errno
import os
from pathlib import Path

import pytest

from astraflow.contract.errors import StorageFull
from astraflow.weights.atomic_files import AtomicFile, write_file
from tests.errors import raises_code


def _raise_full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_appears_complete_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    part = AtomicFile(tmp_path)
    part.write(b"first ")
    part.write(memoryview(b"second"))
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]

    part.commit(tmp_path / "file")
    part.discard()

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"first second"


def test_a_discarded_temporary_file_is_removed_and_closed(tmp_path: Path) -> None:
    part = AtomicFile(tmp_path)
    part.write(b"data")

    part.discard()
    part.discard()

    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="closed"):
        part.write(b"more")


@pytest.mark.parametrize("call", ["write", "fsync", "open"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    write_file(tmp_path / "file", b"old")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, _raise_full)
        with raises_code(StorageFull, "storage.disk_full"):
            write_file(tmp_path / "file", b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_other_disk_errors_are_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "missing" / "file", b"data")
