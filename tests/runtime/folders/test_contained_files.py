"""Files of folders that others wrote."""

import os
from pathlib import Path

import pytest

from astraflow.runtime.folders.contained_files import NotContained, contained_bytes, contained_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file and a link to it, beside a secret."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "file").write_text("0123456789")
    (tmp_path / "folder" / "link").symlink_to("inner/file")
    return tmp_path / "folder"


def test_files_and_links_inside_of_a_folder_are_read(folder: Path) -> None:
    assert list(contained_files(folder)) == ["inner/file", "link"]
    assert contained_bytes(folder, "link", limit=10) == b"0123456789"
    assert contained_bytes(folder, "inner/file", limit=4, is_end=True) == b"6789"


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "..", "/", "inner/../../secret", "/proc/self/environ"])
def test_a_link_out_of_a_folder_is_not_followed(folder: Path, target: str) -> None:
    (folder / "bad").symlink_to(target)
    with pytest.raises(NotContained):
        contained_bytes(folder, "bad", limit=100)
    with pytest.raises(NotContained):
        list(contained_files(folder))


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "inner/../../secret"])
def test_a_path_out_of_a_folder_is_not_read(folder: Path, path: str) -> None:
    with pytest.raises((NotContained, FileNotFoundError)):
        contained_bytes(folder, path, limit=100)


def test_a_link_to_a_folder_above_leads_nowhere(folder: Path) -> None:
    (folder / "up").symlink_to("..")
    with pytest.raises(NotContained):
        contained_bytes(folder, "up/secret", limit=100)


def test_a_pipe_neither_blocks_nor_is_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(NotContained):
        contained_bytes(folder, "pipe", limit=100)
    with pytest.raises(NotContained):
        list(contained_files(folder))


def test_large_files_folders_and_absent_files_are_told_apart(folder: Path) -> None:
    with pytest.raises(NotContained):
        contained_bytes(folder, "inner/file", limit=9)
    with pytest.raises(IsADirectoryError):
        contained_bytes(folder, "inner", limit=9)
    with pytest.raises(FileNotFoundError):
        contained_bytes(folder, "none", limit=9)


def test_a_dangling_link_a_loop_and_deep_folders_are_refused(folder: Path) -> None:
    for name, target in (("loop", "loop"), ("gone", "nowhere")):
        (folder / name).symlink_to(target)
        with pytest.raises(NotContained):
            list(contained_files(folder))
        (folder / name).unlink()
    (folder / "/".join("a" * 65)).mkdir(parents=True)
    with pytest.raises(NotContained):
        list(contained_files(folder))
