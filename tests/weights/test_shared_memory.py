"""Buffers in shared memory: the processes that may map them, and when they may be overwritten."""

import os
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
    PREFIX,
    SHARED_FOLDER,
    SharedBuffer,
    host_id,
    is_on_this_host,
    map_read_only,
    remove_unused_buffers,
)

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
    with pytest.raises(UnknownVersion, match="gone"):
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
