"""Interface of runners of terminal tasks, and the runner in a sandbox."""

import base64
import io
import math
import re
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.datasets.worlds.terminal import TerminalTask
from astraflow.sandbox.base import JobLimits, JobResult, Outcome, Session
from astraflow.sandbox.shared import SharedSandbox

_FOLDER = '"$HOME/app"'
_TESTS = '"$HOME/tests"'
_LOGS = '"$HOME/logs"'
"""Folders in a session, as its shell reads them. Home is the session's own folder at each level of isolation."""

_OUTPUT_BYTES = 16 * 2**20
_CHUNK_CHARS = 2**19
_TRANSFER_S = 60.0
_COPIED = re.compile(r"COPY\s+([\w./-]+)\s+([\w./-]+)")
_WITHOUT_EFFECT = re.compile(r"(?:FROM|LABEL|WORKDIR|CMD|#).*|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the tests of a task."""

    reward: float
    output: str
    is_timeout: bool = False


class TerminalSession(Protocol):
    """Shell of one episode."""

    async def run(self, command: str, *, timeout_s: float) -> JobResult:
        """Runs a command. Raises: SandboxError."""

    async def verify(self, *, timeout_s: float) -> Verdict:
        """Runs the tests of the task on what the commands left. Raises: SandboxError; RolloutFailed when the tests
        write no reward."""


class TerminalRunner(Protocol):
    """Runs terminal tasks. A `ManagedPlugin` when it owns processes."""

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager[TerminalSession]:
        """Prepares the files of a task and opens a shell. Raises: InvalidInput for a task that the runner cannot run;
        SandboxError."""

    async def check(self) -> None:
        """Checks that the runner works on this machine. Raises: InvalidInput or Unavailable with the remedy."""


class SandboxRunner:
    """Runs tasks in sessions of a sandbox of AstraFlow. There is no image: the programs are those of the node, the
    working directory is `$HOME/app`, and the variables APP_DIR, TESTS_DIR and LOGS_DIR replace `/app`, `/tests` and
    `/logs`. Tests run in another session, to which the files are copied, so that nothing which the policy left running
    or defined in its shell can touch them."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._sandbox = SharedSandbox(spec)

    async def start(self) -> None:
        """Starts the sandbox. Raises: SandboxError."""
        await self._sandbox.start()

    async def close(self) -> None:
        """Ends the sandbox after its last user."""
        await self._sandbox.close()

    async def check(self) -> None:
        """Nothing to do: the sandbox checks itself when it starts."""

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager[TerminalSession]:
        """Opens a session with the files of the task."""
        return self._opened(task, copied_files(task))

    @asynccontextmanager
    async def _opened(self, task: TerminalTask, files: Mapping[str, bytes]) -> AsyncIterator[TerminalSession]:
        async with self._session(task) as session:
            await _upload(session, _FOLDER, archive_of(files))
            await session.shell(_prepared(_FOLDER))
            yield _SandboxSession(self, session, task)

    def _session(self, task: TerminalTask) -> AbstractAsyncContextManager[Session]:
        limits = JobLimits(memory_bytes=task.memory_bytes, output_bytes=_OUTPUT_BYTES, processes=64)
        return self._sandbox.session(limits)

    async def judge(self, task: TerminalTask, files: bytes, timeout_s: float) -> Verdict:
        """Runs the tests in a new session, on an archive of the working directory."""
        async with self._session(task) as session:
            await _upload(session, _FOLDER, files)
            await _upload(session, _TESTS, archive_of(files_below(task.folder / "tests")))
            prepared = _prepared(_FOLDER)
            result = await session.shell(f"{prepared}\nbash {_TESTS}/test.sh", timeout_s=timeout_s)
            output = f"{result.stdout}{result.stderr}"
            if result.outcome is Outcome.TIMEOUT:
                return Verdict(reward=0.0, output=output, is_timeout=True)
            written = await session.shell(f"cat {_LOGS}/verifier/reward.txt", timeout_s=_TRANSFER_S)
            return Verdict(reward=reward_of(task, written, output), output=output)


class _SandboxSession:
    def __init__(self, runner: SandboxRunner, session: Session, task: TerminalTask) -> None:
        self._runner = runner
        self._session = session
        self._task = task

    async def run(self, command: str, *, timeout_s: float) -> JobResult:
        """Runs a command; after a timeout, the new shell starts in the working directory."""
        result = await self._session.shell(command, timeout_s=timeout_s)
        if result.outcome is Outcome.TIMEOUT:
            await self._session.shell(_prepared(_FOLDER))
        return result

    async def verify(self, *, timeout_s: float) -> Verdict:
        """Copies the working directory to a new session and runs the tests there."""
        packed = await self._session.shell(f"tar -cf - -C {_FOLDER} . | base64 -w 0", timeout_s=_TRANSFER_S)
        try:
            if packed.outcome is not Outcome.PASSED or packed.is_output_cut:
                raise ValueError(f"it is too large (more than {_OUTPUT_BYTES} bytes), or its shell failed")
            files = base64.b64decode(packed.stdout, validate=True)
            with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                archive.getmembers()
        except (ValueError, tarfile.TarError) as problem:  # the policy decides what its shell answers
            return Verdict(reward=0.0, output=f"The working directory cannot be copied: {problem}")
        return await self._runner.judge(self._task, files, timeout_s)


def copied_files(task: TerminalTask) -> dict[str, bytes]:
    """Returns the files that the Dockerfile of a task copies, by path in the working directory.

    Raises: InvalidInput for a Dockerfile that does more than copying.
    """
    folder = task.folder / "environment"
    dockerfile = folder / "Dockerfile"
    files: dict[str, bytes] = {}
    for line in dockerfile.read_text().splitlines() if dockerfile.is_file() else ():
        match = _COPIED.fullmatch(line.strip())
        if match is None and _WITHOUT_EFFECT.fullmatch(line.strip()) is None:
            raise _not_runnable(task, f"its Dockerfile has {line.strip()!r}")
        if match is not None:
            files |= _copied(task, folder, match[1], match[2])
    return files


def _copied(task: TerminalTask, folder: Path, source: str, target: str) -> dict[str, bytes]:
    path = (folder / source).resolve()
    name = target.removeprefix("/app/").removeprefix("/app").removeprefix("./")
    if (
        not path.is_relative_to(folder.resolve())
        or name.startswith("/")
        or ".." in Path(name).parts
        or not path.exists()
    ):
        raise _not_runnable(task, f"its Dockerfile copies {source!r} to {target!r}")
    if path.is_dir():
        return {str(Path(name, inner)): content for inner, content in files_below(path).items()}
    return {str(Path(name, path.name) if target.endswith(("/", ".")) or not name else Path(name)): path.read_bytes()}


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Returns a tar archive of files by path, all executable for their owner."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def reward_of(task: TerminalTask, written: JobResult, output: str) -> float:
    """Returns the reward that the tests wrote. Raises: RolloutFailed when they wrote none, or no number in 0 to 1."""
    text = written.stdout.strip()
    try:
        reward = float(text) if written.outcome is Outcome.PASSED else math.nan
    except ValueError:
        reward = math.nan
    if not 0 <= reward <= 1:
        raise RolloutFailed(
            f"cannot score the terminal task {task.name!r}: its tests wrote the reward {text[:100]!r}, not a number in "
            f"0 to 1; correct tests/test.sh, which printed {output[-300:]!r}",
            boundary=Boundary.ENVIRONMENT,
            code="environment.no_reward",
        )
    return reward


async def _upload(session: Session, folder: str, archive: bytes) -> None:
    """Unpacks an archive in a folder of the session. Raises: RolloutFailed when it has no room."""
    packed = f"{folder}.b64"
    await session.shell(f"mkdir -p {folder}; : > {packed}", timeout_s=_TRANSFER_S)
    for chunk in _chunks(base64.b64encode(archive).decode()):
        await session.shell(f"printf %s {quote(chunk)} >> {packed}", timeout_s=_TRANSFER_S)
    result = await session.shell(
        f"base64 -d {packed} | tar -xf - -C {folder} --no-same-owner && rm {packed}", timeout_s=_TRANSFER_S
    )
    if result.outcome is not Outcome.PASSED:
        raise RolloutFailed(
            f"cannot copy files into the sandbox: {result.stderr[-300:]}; give it more disk_bytes",
            boundary=Boundary.ENVIRONMENT,
            code="environment.no_room",
        )


def _prepared(folder: str) -> str:
    return (
        f"export APP_DIR={folder} TESTS_DIR={_TESTS} LOGS_DIR={_LOGS} LC_ALL=C.UTF-8; mkdir -p {_LOGS}/verifier; "
        f"cd {folder}"
    )


def _chunks(text: str) -> Iterator[str]:
    return (text[start : start + _CHUNK_CHARS] for start in range(0, len(text), _CHUNK_CHARS))


def files_below(folder: Path) -> dict[str, bytes]:
    """Returns the contents of all files of a folder, by their path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _not_runnable(task: TerminalTask, cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot run the terminal task {task.name!r} in the sandbox: {cause}; use a runner with containers",
        code="environment.needs_container",
    )
