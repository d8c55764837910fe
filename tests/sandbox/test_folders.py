"""Folders that programs leave or change: removed and written to without following links, at any depth."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from astraflow.sandbox.base import Command, Job, JobLimits, Level, Outcome
from astraflow.sandbox.inside import folders
from astraflow.sandbox.local import LocalSandbox
from astraflow.sandbox.options import LocalSandboxOptions
from tests.hostile.policies import LEFT_BEHIND

pytestmark = pytest.mark.anyio

LIMITS = JobLimits(wall_s=10.0, cpu_s=3.0, memory_bytes=256 * 2**20)


def nest(folder: Path, depth: int) -> None:
    """Makes folders in each other, beyond the longest path."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for _ in range(depth):
            Path("long-name").mkdir()
            os.chdir("long-name")
    finally:
        os.chdir(before)
        os.close(before)


def test_a_folder_of_any_depth_width_and_content_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    nest(folder, 1100)
    for number in range(20):
        (folder / f"wide-{number}" / "in").mkdir(parents=True)
        (folder / f"wide-{number}" / "in" / "file").write_text("x")
    os.mkfifo(folder / "pipe")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\n")).mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    assert folders.remove(str(folder))
    assert not folder.exists()
    assert folders.remove(str(folder))  # nothing is left of a folder that is not there


def test_a_removal_follows_no_link(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (outside / "kept").mkdir(parents=True)
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "a").mkdir()
    (folder / "a" / "link").symlink_to(outside / "kept")
    (tmp_path / "linked").symlink_to(outside)
    assert folders.remove(str(folder))
    assert not folders.remove(str(tmp_path / "linked"))
    assert (outside / "kept").is_dir()


def test_a_removal_ends_at_its_limit(tmp_path: Path) -> None:
    nest(tmp_path, 10)
    assert not folders.empty(str(tmp_path), limit_s=-1.0)
    assert tmp_path.is_dir()


def test_a_file_is_written_in_place_of_what_has_its_name(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (outside / "file").write_text("kept")
    folder.mkdir()
    (folder / "link").symlink_to(outside / "file")
    (folder / "folder-link").symlink_to(outside)
    (folder / "full" / "deep").mkdir(parents=True)
    (folder / "file").write_text("a file where a folder belongs")
    os.mkfifo(folder / "pipe")
    os.link(outside / "file", folder / "hard")
    paths = ("link", "folder-link/file", "full", "file/below", "pipe", "hard", "a/./b//c")
    for path in paths:
        folders.write(str(folder), path, path.encode())
    assert [(folder / path).read_text() for path in paths] == list(paths)
    assert [file.name for file in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "kept"


@pytest.mark.parametrize(("depth", "size", "is_too_much"), [(3, 10, False), (100, 10, True), (1, 2**20, True)])
def test_bytes_and_depth_of_a_folder_are_limited(tmp_path: Path, depth: int, size: int, is_too_much: bool) -> None:
    nest(tmp_path, depth)
    (tmp_path / "long-name" / "file").write_bytes(b"x" * size)
    assert folders.exceeds(str(tmp_path), size_bytes=2**19) is is_too_much


def test_entries_of_a_folder_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_MAX_ENTRIES", 30)
    for number in range(30):
        (tmp_path / str(number)).symlink_to("nowhere")
    assert not folders.exceeds(str(tmp_path), size_bytes=2**19)
    (tmp_path / "30").mkdir()
    assert folders.exceeds(str(tmp_path), size_bytes=2**19)


@pytest.mark.parametrize("level", ["restricted", "none"])
async def test_nothing_that_programs_leave_ends_a_worker_or_stays(level: str) -> None:
    options = {"level": level, "allow_weak": True, "workers": 1}
    sandbox = LocalSandbox(LocalSandboxOptions.model_validate(options))
    await sandbox.start()
    try:
        workers, folder = sandbox.worker_pids(), sandbox._folder
        for name, program in LEFT_BEHIND.sends.items():
            result = await sandbox.run(Job(source=f"import os\n{program}\nprint('end')", limits=LIMITS))
            outcomes = {Outcome.CRASHED} if name == "endless" else {Outcome.PASSED, Outcome.CRASHED}
            assert result.outcome in outcomes, (name, result)
            assert (await sandbox.run(Job(source="import os\nprint(os.listdir())", limits=LIMITS))).stdout == "[]\n"
        assert sandbox.worker_pids() == workers
    finally:
        await sandbox.close()
    assert folder is not None
    assert not folder.exists()


@pytest.fixture(params=["namespaces", "restricted"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    options = {"level": request.param, "workers": 1, "disk_bytes": 2**20}
    sandbox = LocalSandbox(LocalSandboxOptions.model_validate(options))
    await sandbox.start()
    yield sandbox
    await sandbox.close()


async def test_files_of_a_command_are_written_through_no_link(sandbox: LocalSandbox) -> None:
    outside = Path(gettempdir(), f"sandbox-outside-{os.getpid()}")
    outside.mkdir()
    outside.chmod(0o777)
    (outside / "kept").write_text("kept")
    (outside / "kept").chmod(0o666)
    try:
        async with sandbox.session(LIMITS) as session:
            await session.shell(f"ln -s {outside}/kept file; ln -s {outside} folder; mkfifo pipe; mkdir -p taken/x")
            paths = ("file", "folder/new", "pipe", "taken")
            command = Command(arguments=("cat", *paths), files={path: f"{path}\n" for path in paths})
            result = await session.execute(command, timeout_s=10.0)
        assert (result.outcome, result.stdout) == (Outcome.PASSED, "".join(f"{path}\n" for path in paths))
        assert [file.name for file in outside.iterdir()] == ["kept"]
        assert (outside / "kept").read_text() == "kept"
    finally:
        assert folders.remove(str(outside))


async def test_a_working_directory_that_a_program_filled_is_its_crash(sandbox: LocalSandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        await session.shell("mkdir a; chmod 0 a; head -c 2000000 /dev/zero > full")
        command = Command(arguments=("true",), files={"a/file": "x" * 2**20})
        result = await session.execute(command, timeout_s=10.0)
    assert result.outcome is (Outcome.CRASHED if sandbox.level is Level.NAMESPACES else Outcome.PASSED)
