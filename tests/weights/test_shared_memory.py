"""Buffers in shared memory: the processes that may map them, and when they may be overwritten."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput, UnknownVersion
from astraflow.contract.weights import SharedFile
from astraflow.weights.shared_memory import (
    MEMORY_FOLDER,
    PREFIX,
    SHARED_FOLDER,
    SharedBuffer,
    VersionBuffer,
    host_id,
    is_on_this_host,
    map_read_only,
    remove_unused_buffers,
)
from tests.errors import raises_code

_LEAVE_BEHIND = """
import os
from astraflow.weights.shared_memory import SharedBuffer
b = SharedBuffer(64)
print(b.file.path, flush=True)
os._exit(9)
"""


@pytest.fixture
def shared_buffer(request: pytest.FixtureRequest) -> SharedBuffer:
    buffer = SharedBuffer(4096)
    request.addfinalizer(buffer.unlink)
    return buffer


def test_readers_map_a_buffer_read_only_without_a_copy(shared_buffer: SharedBuffer) -> None:
    shared_buffer.buffer[:] = 7
    mapped = map_read_only(shared_buffer.file)
    assert (mapped == 7).all()
    shared_buffer.buffer[5] = 9
    assert mapped[5] == 9
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


def test_a_buffer_is_reclaimed_only_without_readers(shared_buffer: SharedBuffer) -> None:
    mapped = map_read_only(shared_buffer.file)
    part = mapped[10:20]
    del mapped
    assert not shared_buffer.reclaim()
    assert len(map_read_only(shared_buffer.file)) == 4096, "a refused reclaim leaves it readable"
    del part
    assert shared_buffer.reclaim()
    with pytest.raises(UnknownVersion) as caught:
        map_read_only(shared_buffer.file)
    assert caught.value.code == "weights.shared_buffer_gone"
    shared_buffer.share()
    assert len(map_read_only(shared_buffer.file)) == 4096


def test_a_removed_buffer_stays_readable_for_its_readers(shared_buffer: SharedBuffer) -> None:
    shared_buffer.buffer[:] = 3
    mapped = map_read_only(shared_buffer.file)
    shared_buffer.unlink()
    assert (mapped == 3).all()
    with raises_code(UnknownVersion, "weights.shared_buffer_gone", "gone"):
        map_read_only(shared_buffer.file)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", *(f"{SHARED_FOLDER}/{name}" for name in (f"{PREFIX}../../etc/passwd", "other", f"sub/{PREFIX}x"))],
)
def test_paths_outside_the_shared_folder_are_refused(path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        map_read_only(SharedFile(host=host_id(), path=path, size_bytes=10))
    assert caught.value.code == "weights.not_a_shared_buffer"


def test_links_folders_and_wrong_sizes_are_refused(shared_buffer: SharedBuffer, tmp_path: Path) -> None:
    link = SHARED_FOLDER / f"{PREFIX}link-of-a-test"
    link.symlink_to(shared_buffer.file.path)
    try:
        with pytest.raises(InvalidInput) as caught:
            map_read_only(replace(shared_buffer.file, path=str(link)))
        assert caught.value.code == "weights.not_a_shared_buffer"
    finally:
        link.unlink()
    with pytest.raises(InvalidInput) as caught:
        map_read_only(replace(shared_buffer.file, size_bytes=4095))
    assert caught.value.code == "weights.not_a_shared_buffer"
    Path(shared_buffer.file.path).chmod(0o644)
    with pytest.raises(InvalidInput) as caught:
        map_read_only(shared_buffer.file)
    assert caught.value.code == "weights.not_a_shared_buffer"


def test_a_buffer_of_another_host_is_refused(shared_buffer: SharedBuffer) -> None:
    assert is_on_this_host(shared_buffer.file)
    elsewhere = replace(shared_buffer.file, host="other")
    assert not is_on_this_host(elsewhere)
    with pytest.raises(InvalidInput):
        map_read_only(elsewhere)


@pytest.mark.long
def test_buffers_of_a_killed_process_are_removed_unless_in_use(shared_buffer: SharedBuffer) -> None:
    left = subprocess.run([sys.executable, "-c", _LEAVE_BEHIND], capture_output=True, text=True).stdout.strip()
    assert Path(left).exists()
    remove_unused_buffers()
    assert not Path(left).exists()
    assert Path(shared_buffer.file.path).exists()


def test_an_old_empty_buffer_is_removed() -> None:
    path = SHARED_FOLDER / f"{PREFIX}{uuid4().hex}"
    path.touch(mode=0o600)
    remove_unused_buffers()
    assert path.exists()
    os.utime(path, (0, 0))
    remove_unused_buffers()
    assert not path.exists()


@pytest.mark.long
def test_a_reader_keeps_a_buffer_whose_writer_was_killed() -> None:
    code = _LEAVE_BEHIND.replace("print(", "b.buffer[:] = 5; print(").replace("os._exit(9)", "input()")
    writer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    path = writer.stdout.readline().strip()
    mapped = map_read_only(SharedFile(host=host_id(), path=path, size_bytes=64))
    writer.kill()
    writer.communicate()
    remove_unused_buffers()
    assert Path(path).exists()
    assert np.array_equal(mapped, np.full(64, 5, dtype=np.uint8))
    del mapped
    remove_unused_buffers()
    assert not Path(path).exists()


_ATTACK = """
import sys
from astraflow.contract.weights import SharedFile
from astraflow.weights import shared_memory
from astraflow.weights.shared_memory import host_id, map_read_only
path = sys.argv[1]
mapped = map_read_only(SharedFile(host=host_id(), path=path, size_bytes=4096))
print("read", int(mapped[0]), flush=True)
for alter in (
    lambda: open(path, "r+b").write(b"evil"),
    lambda: shared_memory.map_writable(SharedFile(host=host_id(), path=path, size_bytes=4096)),
    lambda: shared_memory.SharedBuffer(64),
    lambda: __import__("os").unlink(path),
    lambda: __import__("os").chmod(path, 0o666),
):
    try:
        alter()
        print("altered")
    except Exception as problem:
        print("refused")
print("version", bytes(mapped[:4]))
"""


def attacked(folder: Path, *, is_read_only: bool) -> list[str]:
    """Maps a version in a folder as another container does and tries to alter it; returns what was printed."""
    mount = f"mount --bind {folder} {folder}" + (f" && mount -o remount,bind,ro {folder}" if is_read_only else "")
    (name,) = (path.name for path in folder.iterdir())
    command = f'{mount} && exec "$0" -c "$1" {folder}/{name}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, sys.executable, _ATTACK],
        env=os.environ | {"ASTRAFLOW_SHARED_FOLDER": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.needs("root")
def test_a_node_whose_folder_is_read_only_maps_versions_and_cannot_alter_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = MEMORY_FOLDER / f"test-{uuid4().hex}"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr("astraflow.weights.shared_memory.SHARED_FOLDER", folder)
    try:
        buffer = SharedBuffer(4096)
        buffer.buffer[:] = 7
        assert attacked(folder, is_read_only=True) == ["read 7", *["refused"] * 5, f"version {bytes([7] * 4)!r}"]
        assert (buffer.buffer == 7).all()
        assert "altered" in attacked(folder, is_read_only=False), "the attack that the mount prevents"
        assert bytes(buffer.buffer[:4]) == b"evil"
        buffer.unlink()
    finally:
        shutil.rmtree(folder)


def test_versions_are_in_the_folder_that_the_environment_names(tmp_path: Path) -> None:
    code = "from astraflow.weights import shared_memory as s; print(s.SHARED_FOLDER, s.MEMORY_FOLDER)"
    for folder, expected in ((str(tmp_path), str(tmp_path)), ("", str(MEMORY_FOLDER))):
        environment = os.environ | {"ASTRAFLOW_SHARED_FOLDER": folder}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected, str(MEMORY_FOLDER)]


def test_a_version_is_in_private_memory_where_the_folder_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.weights.shared_memory.SHARED_FOLDER", Path("/proc"))
    version = VersionBuffer.allocate(64)
    assert version.file is None
    assert version.buffer.nbytes == 64
