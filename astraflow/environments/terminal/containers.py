"""Runner of terminal tasks in containers, by the command line of Docker or Podman."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.worlds.terminal import TerminalTask, paths_below, task_file
from astraflow.environments.container_engine import COMMAND_S, Container, ContainerEngine
from astraflow.environments.container_limits import ContainerLimits
from astraflow.environments.terminal.runners import PLACE_LINKS, Judge, TestRun, Verdict, supervisor_source
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

_KEPT_FOLDER = "/tmp/.astraflow-folder"  # noqa: S108 (inside the container)
_TESTS, _LOGS = "/tests", "/logs"
_MAX_CONTEXT_BYTES = 2**34
"""Largest file from which an image is built."""
_CAN_SUPERVISE = "import sys, ctypes; sys.exit(sys.version_info < (3, 10))"
_MAIN = "\nimport sys\nsys.exit(main(sys.argv[1].split(':'), sys.argv[2].split(':'), sys.argv[3:]))"
_EMPTIED = 'rm -rf -- "$0" && mkdir -p -- "$0"'
_IS_FOLDER = '[ -d "$0" ] && [ ! -L "$0" ]'


class ContainerRunner:
    """Builds the image of a task once, and gives each episode a container of its own, without network unless
    `has_network`. Variables of the shell do not last from one command to the next; the working directory does."""

    def __init__(self, program: str, *, has_network: bool, capabilities: Sequence[str] = ()) -> None:
        self._engine = ContainerEngine(program)
        self._has_network = has_network
        self._capabilities = tuple(capabilities)
        self._building = asyncio.Lock()
        self._images: set[str] = set()
        self._judge = Judge()

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager["ContainerSession"]:
        """Builds the image, unless it exists, and starts a container."""
        return self._opened(task)

    async def check(self) -> None:
        """Checks that the container engine answers. Raises: InvalidInput, Unavailable."""
        await self._engine.check()

    @asynccontextmanager
    async def _opened(self, task: TerminalTask) -> AsyncIterator["ContainerSession"]:
        async with self._container(task) as container:
            yield await ContainerSession.begun(container, task, self._judge, lambda: self._container(task))

    @asynccontextmanager
    async def _container(self, task: TerminalTask) -> AsyncIterator[Container]:
        limits = ContainerLimits(
            memory_bytes=task.memory_bytes,
            cpus=task.cpus,
            disk_bytes=task.storage_bytes,
            capabilities=self._capabilities,
        )
        async with self._engine.container(
            task.image or await self._built(task),
            network="" if self._has_network else "none",
            limits=limits,
            label="terminal",
            start_s=task.build_s,
        ) as container:
            yield container

    async def _built(self, task: TerminalTask) -> str:
        tag = f"astraflow-terminal:{await asyncio.to_thread(_digest, task)}"
        folder = task.folder / "environment"
        async with self._building:
            if tag not in self._images:
                await self._engine.done("build", "--quiet", "--tag", tag, str(folder), timeout_s=task.build_s)
                self._images.add(tag)
        return tag


class TaskContainer(Protocol):
    """Container of one task."""

    async def execute(self, *command: str, timeout_s: float) -> JobResult:
        """Runs a command in the container, which stops it. Raises: SandboxError."""

    async def make_folders(self, *paths: str) -> JobResult:
        """Makes folders, each below the root folder or below one before it. Raises: SandboxError."""

    async def copy_folder(self, source: Path, target: str) -> JobResult:
        """Copies the contents of a folder of this machine into a folder of the container. Raises: SandboxError."""

    async def end(self) -> None:
        """Ends what runs in the container; its files remain. Raises: SandboxError."""

    async def pack(self, path: str, target: IO[bytes]) -> bool:
        """Writes a folder of the container that was ended to an archive; returns whether it could be read and is not
        too large. Raises: SandboxError."""

    async def unpack(self, source: IO[bytes], path: str) -> bool:
        """Fills an empty folder from the archive of one; returns whether that worked. Raises: SandboxError."""

    async def text(self, path: str) -> str:
        """Returns the begin of a file of the container that was ended; empty without one. Raises: SandboxError."""


class ContainerSession:
    """Commands in one container, and the tests in another one of the same image."""

    def __init__(
        self,
        container: TaskContainer,
        task: TerminalTask,
        judge: Judge,
        fresh: Callable[[], AbstractAsyncContextManager[TaskContainer]],
        paths: Sequence[str],
    ) -> None:
        """fresh: starts another container of the task. paths: folders that the tests see as the policy left them."""
        self._container = container
        self._task = task
        self._judge = judge
        self._fresh = fresh
        self._paths = paths

    @classmethod
    async def begun(
        cls,
        container: TaskContainer,
        task: TerminalTask,
        judge: Judge,
        fresh: Callable[[], AbstractAsyncContextManager[TaskContainer]],
    ) -> "ContainerSession":
        """Returns the session of a container that no command has reached. Raises: InvalidInput for an image whose
        working directory cannot be copied; SandboxError."""
        paths = task.paths or ((await container.execute("pwd", timeout_s=COMMAND_S)).stdout.strip(),)
        if "/" in paths:
            raise InvalidInput(
                f"cannot run the terminal task {task.name!r}: its image has the working directory '/', which is too "
                "large for the tests; set WORKDIR in its Dockerfile, or paths under [verifier] in task.toml",
                code="environment.no_working_directory",
            )
        return cls(container, task, judge, fresh, paths)

    async def run(self, command: str, *, timeout_s: float) -> JobResult:
        """Runs a command in the folder where the last one ended."""
        script = f"cd \"$(cat {_KEPT_FOLDER} 2>/dev/null || pwd)\"; trap 'pwd > {_KEPT_FOLDER}' EXIT\n{command}"
        return await self._container.execute("bash", "-c", script, timeout_s=timeout_s)

    async def verify(self, *, timeout_s: float) -> Verdict:
        """Ends the container, copies what the policy left to a new one of the same image and runs the tests there."""
        await self._container.end()
        with tempfile.TemporaryDirectory(prefix="astraflow-terminal-") as folder:
            archives = {path: Path(folder, str(number)) for number, path in enumerate(self._paths)}
            for path, archive in archives.items():
                with archive.open("wb") as target:
                    is_packed = await self._container.pack(path, target)
                if not is_packed:
                    async with self._fresh() as container:
                        await self._copy_tests(container)  # the engine works: what the policy left is the cause
                    return Verdict(reward=0.0, output=f"The folder {path} cannot be copied, or is too large.")
            run = await self._tested(archives, timeout_s)
            return await self._judge.verdict(self._task, run, lambda: self._tested({}, timeout_s))

    async def _tested(self, archives: dict[str, Path], timeout_s: float) -> TestRun:
        async with self._fresh() as container:
            for path, archive in archives.items():
                if not await _placed(container, path, archive):
                    result = JobResult(outcome=Outcome.FAILED, exit_status=1, stdout="", stderr="", wall_s=0.0)
                    return TestRun(result=replace(result, stderr=f"The folder {path} cannot be copied."), written="0")
            await self._copy_tests(container)
            command = await self._test_command(container)
            result = await container.execute(*command, timeout_s=timeout_s)
            await container.end()
            return TestRun(result=result, written=await container.text(f"{_LOGS}/verifier/reward.txt"))

    async def _copy_tests(self, container: TaskContainer) -> None:
        await container.make_folders(_LOGS, f"{_LOGS}/verifier", _TESTS)
        copied = await container.copy_folder(self._task.folder / "tests", _TESTS)
        if copied.outcome is not Outcome.PASSED:
            raise SandboxError(
                f"cannot copy the tests of task {self._task.name!r}: {copied.stderr.strip()[-300:]!r}; check the "
                "container engine",
                code="environment.container_failed",
            )

    async def _test_command(self, container: TaskContainer) -> Sequence[str]:
        """Returns the command of the tests: below the supervisor, if the image has a Python that can run it."""
        tests = ("bash", f"{_TESTS}/test.sh")
        python = await container.execute("python3", "-c", _CAN_SUPERVISE, timeout_s=COMMAND_S)
        if python.outcome is not Outcome.PASSED:
            return tests
        return ("python3", "-c", supervisor_source() + _MAIN, ":".join(self._paths), f"{_TESTS}:{_LOGS}", *tests)


async def _placed(container: TaskContainer, path: str, archive: Path) -> bool:
    """Replaces a folder by what the policy left; returns whether that worked."""
    await container.execute("sh", "-c", _EMPTIED, path, timeout_s=COMMAND_S)
    with archive.open("rb") as source:
        if not await container.unpack(source, path):
            return False
    for script in (_IS_FOLDER, PLACE_LINKS):
        if (await container.execute("sh", "-c", script, path, timeout_s=COMMAND_S)).outcome is not Outcome.PASSED:
            return False
    return True


def _digest(task: TerminalTask) -> str:
    """Returns a digest of the names and contents of all files, as a tag of the image."""
    digest = hashlib.sha256()
    for path in paths_below(task.folder, "environment"):
        content = task_file(task.folder, path, limit=_MAX_CONTEXT_BYTES) or b""
        digest.update(f"{path}\n{len(content)}\n".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:32]
