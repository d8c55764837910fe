"""Private files: replaced as a whole, and readable by their owner only."""

import os
from pathlib import Path

import pytest

from astraflow.runtime.folders.private_files import write_private


@pytest.mark.parametrize(("content", "permissions"), [("a secret", 0o600), (b"\x00\xff", 0o640)])
def test_a_file_is_replaced_with_its_permissions(tmp_path: Path, content: str | bytes, permissions: int) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o666)
    write_private(path, content, permissions=permissions, is_durable=True)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert path.stat().st_mode & 0o777 == permissions
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "secret"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        write_private(path, "new", is_durable=True)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
