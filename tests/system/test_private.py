"""Only their user can read the files of services, and no log file contains credentials."""

import asyncio
import os
import signal
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.system.processes import command, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]


def readable_by_others(folder: Path) -> dict[str, str]:
    """Returns the mode of every file, folder and socket that users other than the owner can access."""
    modes = {}
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # a checkpoint may be renamed meanwhile
            modes[path] = path.lstat().st_mode
    return {str(path): oct(mode) for path, mode in modes.items() if not stat.S_ISLNK(mode) and mode & 0o077}


def texts_in(folder: Path) -> str:
    """Returns the texts of all logs and JSON files, but of those that are renamed meanwhile."""
    texts = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and path.suffix in (".log", ".json"):
                texts.append(path.read_text(errors="replace"))
    return "".join(texts)


async def text_of(file: Path) -> str:
    """Returns the text of a file that a service writes once it listens."""
    for _ in range(1200):
        if file.exists():
            break
        await asyncio.sleep(0.1)
    return file.read_text()


async def test_the_files_of_a_run_are_private_and_its_logs_have_no_login_link(tmp_path: Path) -> None:
    run_dir = tmp_path / "state" / "run"
    async with running("smoke", run_dir, "--fleet", output_file=tmp_path / "said") as run:
        await run.steps_more(3)
        link = await text_of(run_dir / "web" / "login-link")
        token = link.partition("token=")[2]
        opened = readable_by_others(tmp_path / "state")
        output = texts_in(run_dir) + (tmp_path / "said").read_text(errors="replace")
        names = {path.name for path in run_dir.rglob("*")}

    assert opened == {}
    assert {"web.sqlite", "web.sqlite-wal", "history.sqlite", "web.log", "dataflow.log"} <= names
    assert token
    assert token not in output


@pytest.mark.parametrize("role", ["weights", "dataflow", "fleet"])
async def test_a_separately_served_role_keeps_its_state_private(tmp_path: Path, role: str) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(0o755)
    pools = tmp_path / "fleet.toml"
    pools.write_text('[providers.local]\nkind = "local_process"\n')
    async with FakeControlPlane(sequence=1).serving() as address:
        arguments = {
            "weights": ["smoke"],
            "dataflow": ["smoke", "--weights", "127.0.0.1:1"],
            "fleet": [str(pools), "--dataflow", address],
        }[role]
        await serves_privately(role, arguments, directory)


async def serves_privately(role: str, arguments: list[str], directory: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command("serve", role, *arguments, "--directory", str(directory)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"ASTRAFLOW_TOKEN": TOKEN},
        umask=0o022,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            assert (await process.stdout.readline()).startswith(b"ready ")
        assert any(directory.iterdir())
        assert readable_by_others(directory) == {}
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
