"""`python -m web` as a child process."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from astraflow.runtime import logs
from astraflow.runtime.service import FOLLOW_PARENT
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from web.__main__ import main

PATIENCE_S = 30.0


@asynccontextmanager
async def started(
    *arguments: str, environment: dict[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts `python -m web` with these arguments; kills it if the test leaves it running."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "web",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"ASTRAFLOW_TOKEN": TOKEN} | (environment or {}),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(process: asyncio.subprocess.Process, directory: Path) -> str:
    """Returns the login link from its file; the first line of the output has none."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("ready http://127.0.0.1:"), line
    assert "login" not in line
    return (directory / "login-link").read_text()


def modes_of(folder: Path) -> dict[str, int]:
    """Returns the modes of all paths in a folder by relative path; the folder itself has the empty name."""
    path_by_name = {"": folder, **{str(path.relative_to(folder)): path for path in folder.rglob("*")}}
    return {name: stat.S_IMODE(path.lstat().st_mode) for name, path in path_by_name.items()}


@pytest.mark.long
@pytest.mark.anyio
async def test_the_process_stops_with_open_sockets_keeps_logins_and_follows_its_parent(
    tmp_path: Path,
) -> None:
    fake = FakeControlPlane(sequence=30)
    async with fake.serving() as dataflow, started("--dataflow", dataflow, "--directory", str(tmp_path)) as process:
        url = await ready(process, tmp_path)
        address = url.partition("/login")[0]
        async with httpx.AsyncClient(base_url=address) as client:
            await client.get(url)
            cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
            port = address.rpartition(":")[2]
            async with connect(
                f"ws://127.0.0.1:{port}/live?after=0",
                origin=address,  # type: ignore[arg-type] # a str
                additional_headers={"cookie": cookie},
            ) as listening:
                await listening.recv()
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(PATIENCE_S):  # a server that waits for its sockets would never end
                    code = await process.wait()

            assert code == 0

            # After a restart at the same address, the session is still valid and the login link is a new one.
            following = {FOLLOW_PARENT: "1"}
            options = ("--dataflow", dataflow, "--directory", str(tmp_path), "--port", port)
            async with started(*options, environment=following) as second, asyncio.timeout(20):
                assert await ready(second, tmp_path) != url
                assert (await client.get("/api/v1/session")).status_code == 200
                assert second.stdin is not None
                second.stdin.close()
                assert await second.wait() == 0, "the process ends with its parent"


@pytest.mark.long
@pytest.mark.anyio
async def test_stored_files_are_private_including_those_of_an_earlier_release(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "web.sqlite").touch()
    (folder / "web.sqlite").chmod(0o644)
    fake = FakeControlPlane(sequence=30)
    async with fake.serving() as dataflow, started("--dataflow", dataflow, "--directory", str(folder)) as process:
        await ready(process, folder)
        for _ in range(1000):
            if (folder / "web.sqlite-wal").exists():
                break
            await asyncio.sleep(0.02)
        modes = modes_of(folder)

    assert modes.pop("") == 0o700
    assert {"web.sqlite", "web.sqlite-wal", "web.sqlite-shm", "web.secret", "login-link"} <= set(modes)
    assert set(modes.values()) == {0o600}


async def printed_by(command: Sequence[str]) -> tuple[str, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return out.decode().strip(), err.decode().strip()


@pytest.mark.long
@pytest.mark.anyio
async def test_a_pipe_gets_the_login_link_and_a_command_creates_another(tmp_path: Path) -> None:
    fake = FakeControlPlane(sequence=30)
    async with fake.serving() as dataflow, started("--dataflow", dataflow, "--directory", str(tmp_path)) as process:
        first = await ready(process, tmp_path)
        command = (sys.executable, "-m", "astraflow.cli.main", "login-link", str(tmp_path))
        second, note = await printed_by(command)
        async with httpx.AsyncClient() as client:
            opened = [(await client.get(link)).status_code for link in (first, second)]
            again = (await client.get(second)).status_code
        process.send_signal(signal.SIGTERM)
        output = b"".join(await process.communicate()).decode()
        _, later_note = await printed_by(command)

    assert (note, "nothing answers" in later_note) == ("", True)
    assert second.startswith(first.partition("token=")[0])
    assert opened == [303, 303]
    assert again != 500
    assert output.startswith(f"log in, once, at {first}\n")
    assert output.count("token=") == 1


def test_invalid_input_ends_with_the_code_of_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "configure", lambda: None)
    monkeypatch.setenv("ASTRAFLOW_TOKEN", TOKEN)
    (tmp_path / "file").touch()
    options = ("--dataflow", "127.0.0.1:9", "--directory", str(tmp_path / "d"))

    def refused(*arguments: str) -> str:
        assert main(arguments) != 0
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        return err

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        unavailable = refused(*options, "--port", str(port))
        assert "[listen.address_unavailable]" in unavailable
        assert str(port) in unavailable
    below_a_file = refused("--dataflow", "127.0.0.1:9", "--directory", str(tmp_path / "file"))
    assert "[web.directory_unusable]" in below_a_file
    assert "[web.tls_required]" in refused(*options, "--host", "0.0.0.0")  # noqa: S104 (it must refuse)
    assert "[channel.invalid_address]" in refused("--dataflow", "nowhere", "--directory", str(tmp_path / "d"))
    assert "port: " in refused(*options, "--port", "99999")
    assert "behind_proxy: " in refused(*options, "--behind-proxy", "http://plain.example")
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "")
    assert "[web.token_missing]" in refused(*options)
