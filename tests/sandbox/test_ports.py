"""Sessions that reach one port of the host, and programs in them that try to reach more."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.sandbox.base import Command, JobLimits, JobResult, Outcome, SandboxError, Session
from astraflow.sandbox.local import LocalSandbox
from astraflow.sandbox.options import LocalSandboxOptions
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

LIMITS = JobLimits(memory_bytes=256 * 2**20, output_bytes=2**16)
CLIENT = """
import json, socket, sys
def reached(family, address, kind=socket.SOCK_STREAM):
    try:
        with socket.socket(family, kind) as client:
            client.settimeout(2)
            client.connect(tuple(address) if isinstance(address, list) else address)
            client.sendall(b'who\\n')
            return client.recv(100).decode()
    except OSError as problem:
        return type(problem).__name__
print(json.dumps([reached(*target) for target in json.load(sys.stdin)]))
"""
TCP = int(socket.AF_INET)
UNIX = int(socket.AF_UNIX)


@asynccontextmanager
async def sandboxes(**options: object) -> AsyncIterator[LocalSandbox]:
    sandbox = LocalSandbox(LocalSandboxOptions.model_validate({"workers": 1, **options}))
    try:
        await sandbox.start()
        yield sandbox
    finally:
        await sandbox.close()


@asynccontextmanager
async def service(name: str, path: str | None = None) -> AsyncIterator[int]:
    """Answers each line with its name, on a free port or a Unix socket; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(name.encode())
        writer.close()

    started = asyncio.start_server(answer, "127.0.0.1", 0) if path is None else asyncio.start_unix_server(answer, path)
    async with await started as server:
        yield 0 if path else server.sockets[0].getsockname()[1]


async def reached(session: Session, *targets: object) -> list[str]:
    command = Command(arguments=("/usr/bin/python3", "-I", "-c", CLIENT), stdin=json.dumps(targets))
    result = await session.execute(command)
    assert result.outcome is Outcome.PASSED, result
    return list(json.loads(result.stdout))


@pytest.mark.long
async def test_a_session_reaches_its_port_and_nothing_else() -> None:
    async with (
        sandboxes() as sandbox,
        service("own") as own,
        service("other") as other,
        sandbox.session(LIMITS, port=own) as session,
        sandbox.session(LIMITS, port=other) as neighbour,
        sandbox.session(LIMITS) as closed,
    ):
        host = next(
            (address.address for all_ in psutil.net_if_addrs().values() for address in all_
             if address.family == socket.AF_INET and not address.address.startswith("127.")), "192.0.2.1",
        )  # fmt: skip
        targets = [(TCP, ("127.0.0.1", own)), (TCP, ("127.0.0.1", other)), (TCP, (host, own)), (TCP, (host, other))]
        mine, theirs, none = await asyncio.gather(*(reached(s, *targets) for s in (session, neighbour, closed)))
        assert (mine[0], theirs[1]) == ("own", "other")
        assert [name for names in (mine, theirs, none) for name in names].count("own") == 1
        assert [name for names in (mine, theirs, none) for name in names].count("other") == 1


@contextmanager
def abstract_socket() -> Iterator[str]:
    name = f"\0astraflow-port-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        yield name


@pytest.mark.long
async def test_a_session_with_a_port_reaches_no_socket_of_the_host(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with abstract_socket() as abstract:
        async with sandboxes() as sandbox, service("own") as own, service("local", path):
            Path(path).chmod(0o777)
            async with sandbox.session(LIMITS, port=own) as session:
                udp = (TCP, ("192.0.2.1", 53), int(socket.SOCK_DGRAM))
                answers = await reached(session, (UNIX, path), (UNIX, abstract), udp, (TCP, ("192.0.2.1", own)))
    assert set(answers) <= {"FileNotFoundError", "ConnectionRefusedError", "OSError", "PermissionError"}, answers


@pytest.mark.long
async def test_a_program_gets_no_descriptor_besides_its_own() -> None:
    async with sandboxes() as sandbox, service("own") as own, sandbox.session(LIMITS, port=own) as session:
        result = await session.execute(Command(arguments=("ls", "/proc/self/fd")))
        assert result.stdout.split() == ["0", "1", "2", "3"]  # the last one is the listing's
        listeners = await session.execute(Command(arguments=("cat", "/proc/net/tcp", "/proc/net/unix")))
        assert len([line for line in listeners.stdout.splitlines() if ":" in line and "0A" in line.split()]) == 1


async def test_the_end_of_a_session_closes_its_connections() -> None:
    async with sandboxes() as sandbox, service("own") as own:
        before = asyncio.all_tasks()
        async with sandbox.session(LIMITS, port=own) as session:
            hold = f"import socket, time; c = socket.create_connection(('127.0.0.1', {own})); time.sleep(60)"
            running = asyncio.create_task(session.execute(Command(arguments=("/usr/bin/python3", "-I", "-c", hold))))
            await asyncio.sleep(0.5)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0.1)
        left = [task for task in asyncio.all_tasks() - before if "close" not in repr(task)]
        assert not left


async def test_a_flood_of_connections_is_limited() -> None:
    flood = (
        "import socket, sys\nclients = []\n"
        "for _ in range(150):\n    c = socket.create_connection(('127.0.0.1', {port})); c.sendall(b'x\\n')\n"
        "    clients.append(c)\nprint(sum(c.recv(10) == b'own' for c in clients))"
    )
    async with sandboxes() as sandbox, service("own") as own, sandbox.session(LIMITS, port=own) as session:
        result = await session.execute(
            Command(arguments=("/usr/bin/python3", "-I", "-c", flood.format(port=own))), timeout_s=20
        )
        assert 0 < int(result.stdout or 0) <= 64 or "ConnectionResetError" in result.stderr
        async with asyncio.timeout(20):  # the end of the program's connections is noticed later than its own
            while await reached(session, (TCP, ("127.0.0.1", own))) != ["own"]:
                pass


async def test_a_level_that_cannot_limit_to_a_port_refuses() -> None:
    async with sandboxes(level="restricted") as sandbox:
        with raises_code(SandboxError, "sandbox.port_not_limitable"):
            async with sandbox.session(LIMITS, port=9):
                pass


@pytest.mark.long
async def test_without_isolation_the_port_is_the_hosts() -> None:
    async with (
        sandboxes(level="none", allow_weak=True) as sandbox,
        service("own") as own,
        sandbox.session(LIMITS, port=own) as session,
    ):
        assert await reached(session, (TCP, ("127.0.0.1", own))) == ["own"]


@pytest.fixture(params=["namespaces", "restricted"])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    async with sandboxes(level=request.param) as sandbox, sandbox.session(LIMITS) as session:
        yield session


@pytest.mark.long
async def test_a_command_has_its_input_files_and_only_its_variables(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    command = Command(
        arguments=("sh", "-c", 'cat; cat parts/a.txt; echo "$NAME $A_SECRET"; pwd; echo left > b.txt'),
        stdin="input\n",
        environment={"NAME": "value"},
        files={"parts/a.txt": "file\n"},
    )
    result = await session.execute(command)
    assert result.stdout.splitlines()[:3] == ["input", "file", "value "]
    assert (await session.execute(Command(arguments=("cat", "b.txt")))).stdout == "left\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "outcome", "status"),
    [
        (("sh", "-c", "exit 3"), Outcome.FAILED, 3),
        (("no-such-program",), Outcome.FAILED, 127),
        (("/etc",), Outcome.FAILED, 126),
        (("sh", "-c", "kill -9 $$"), Outcome.CRASHED, None),
        (("sleep", "60"), Outcome.TIMEOUT, None),
    ],
)
async def test_the_end_of_a_command_is_reported(
    session: Session, arguments: tuple[str, ...], outcome: Outcome, status: int | None
) -> None:
    result: JobResult = await session.execute(Command(arguments=arguments), timeout_s=1.0)
    assert (result.outcome, result.exit_status) == (outcome, status)


async def test_files_of_a_command_outside_of_the_folder_are_refused(session: Session) -> None:
    with raises_code(InvalidInput, "sandbox.invalid_path", "../x"):
        await session.execute(Command(arguments=("true",), files={"../x": ""}))


@pytest.mark.parametrize("path", ["relative", "/no/such/path", "/tmp/x"])  # noqa: S108 (refused)
async def test_a_path_that_jobs_cannot_read_is_refused_at_start(path: str) -> None:
    with raises_code(SandboxError, "sandbox.too_weak", path):
        async with sandboxes(readable_paths=[path]):
            pass
