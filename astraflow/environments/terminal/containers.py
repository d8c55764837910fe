"""Runner of terminal tasks in containers, by the command line of Docker or Podman."""

import asyncio
import hashlib
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import IO, Protocol

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.worlds.terminal import (
    TerminalStep,
    TerminalTask,
    TerminalVerifier,
    paths_below,
    task_file,
)
from astraflow.datasets.worlds.terminal_services import TerminalService
from astraflow.environments.container_engine import COMMAND_S, Container, ContainerEngine, ServiceCommand
from astraflow.environments.container_limits import ContainerLimits
from astraflow.environments.terminal.runners import (
    PLACE_LINKS,
    REWARD_FILES,
    Judge,
    TestRun,
    Verdict,
    supervisor_source,
)
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

_KEPT_FOLDER = "/tmp/.astraflow-folder"  # noqa: S108 (inside the container)
_TESTS, _LOGS = "/tests", "/logs"
_HEALTH_S = 0.5
"""Pause between two health checks. Seconds."""
_MAX_CONTEXT_BYTES = 2**34
"""Largest file from which an image is built."""
_CAN_SUPERVISE = "import sys, ctypes; sys.exit(sys.version_info < (3, 10))"
_MAIN = "\nimport sys\nsys.exit(main(sys.argv[1].split(':'), sys.argv[2].split(':'), sys.argv[3:]))"
_EMPTIED = 'rm -rf -- "$0" && mkdir -p -- "$1"'
_IS_PLAIN = '[ ! -L "$0" ] && { [ -d "$0" ] || [ -f "$0" ]; }'


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
        async with AsyncExitStack() as resources:
            network = await self._with_services(task, resources)
            container = await resources.enter_async_context(self._container(task, network))
            yield await ContainerSession.begun(container, task, self._judge, lambda: self._verifier(task, network))

    async def _with_services(self, task: TerminalTask, resources: AsyncExitStack) -> str:
        """Starts the services of a task; returns the network of the episode. Raises: InvalidInput, SandboxError."""
        if not task.services:
            return "" if self._has_network else "none"
        if self._has_network:
            raise InvalidInput(
                f"cannot run the terminal task {task.name!r} with has_network: its services are in a network of their "
                "own; leave has_network out",
                code="environment.services_have_no_network",
            )
        network = await resources.enter_async_context(self._engine.private_network())
        for service in task.services:
            starting = self._engine.container(
                service.image or await self._built(task, service.folder),
                network=network,
                limits=self._limits(task),
                label="terminal-service",
                start_s=task.build_s,
                service=ServiceCommand(
                    name=service.name,
                    variables=service.variables,
                    entrypoint=service.entrypoint,
                    command=service.command,
                ),
            )
            await _healthy(await resources.enter_async_context(starting), task, service)
        return network

    def _container(self, task: TerminalTask, network: str) -> AbstractAsyncContextManager[Container]:
        return self._started(task, self._limits(task), task.image, "environment", network)

    def _verifier(self, task: TerminalTask, network: str) -> AbstractAsyncContextManager[Container]:
        """Starts a container for the tests, which no command of the policy has reached."""
        if task.verifier is None:
            return self._container(task, network)
        return self._started(task, self._limits(task.verifier), task.verifier.image, "tests", network)

    @asynccontextmanager
    async def _started(
        self, task: TerminalTask, limits: ContainerLimits, image: str, source: str, network: str
    ) -> AsyncIterator[Container]:
        """Starts a container of an image, or of one that is built from a folder of the task."""
        async with self._engine.container(
            image or await self._built(task, source),
            network=network,
            limits=limits,
            label="terminal",
            start_s=task.build_s,
        ) as container:
            yield container

    def _limits(self, size: TerminalTask | TerminalVerifier) -> ContainerLimits:
        return ContainerLimits(
            memory_bytes=size.memory_bytes,
            cpus=size.cpus,
            disk_bytes=size.storage_bytes,
            capabilities=self._capabilities,
        )

    async def _built(self, task: TerminalTask, source: str) -> str:
        tag = f"astraflow-terminal:{await asyncio.to_thread(_digest, task, source)}"
        folder = task.folder / source
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

    async def freeze(self) -> None:
        """Suspends what runs in the container. Raises: SandboxError, also where that is not possible."""

    async def thaw(self) -> None:
        """Continues what runs in the container. Raises: SandboxError."""

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
        self._is_frozen = False

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
        variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self._task.variables.items())
        script = (
            f"{variables}cd \"$(cat {_KEPT_FOLDER} 2>/dev/null || pwd)\"; trap 'pwd > {_KEPT_FOLDER}' EXIT\n{command}"
        )
        return await self._container.execute("bash", "-c", script, timeout_s=timeout_s)

    async def verify(self, step: TerminalStep) -> Verdict:
        """Ends the container, or freezes it before further steps; copies what the policy left to a new one and runs the
        tests there."""
        self._is_frozen = step is not self._task.steps[-1]
        await (self._container.freeze() if self._is_frozen else self._container.end())
        with tempfile.TemporaryDirectory(prefix="astraflow-terminal-") as folder:
            archives = {path: Path(folder, str(number)) for number, path in enumerate(self._paths)}
            for path, archive in tuple(archives.items()):
                with archive.open("wb") as target:
                    is_packed = await self._container.pack(path, target)
                if is_packed:
                    continue
                if self._task.is_separate:
                    del archives[path]  # the tests judge what is missing
                    continue
                async with self._fresh() as container:
                    await self._copy_tests(container, step)  # the engine works: what the policy left is the cause
                return Verdict(reward=0.0, output=f"The folder {path} cannot be copied, or is too large.")
            run = await self._tested(step, archives)
            return await self._judge.verdict(self._task, step, run, lambda: self._tested(step, {}))

    async def proceed(self, step: TerminalStep) -> JobResult | None:
        """Continues the container, and adds the files of a step to the working directory."""
        if self._is_frozen:
            await self._container.thaw()
        if not step.files:
            return None
        folder = (await self._container.execute("pwd", timeout_s=COMMAND_S)).stdout.strip()
        copied = await self._container.copy_folder(self._task.folder / step.files, folder)
        if copied.outcome is not Outcome.PASSED or not step.has_setup:
            return copied
        return await self._container.execute("bash", f"{folder}/setup.sh", timeout_s=self._task.build_s)

    async def _tested(self, step: TerminalStep, archives: dict[str, Path]) -> TestRun:
        async with self._fresh() as container:
            for path, archive in archives.items():
                if not await _placed(container, path, archive, is_folder=not self._task.is_separate):
                    cause = f"The folder {path} cannot be copied."
                    result = JobResult(outcome=Outcome.FAILED, exit_status=1, stdout="", stderr=cause, wall_s=0.0)
                    return TestRun(result=result, written="0")
            await self._copy_tests(container, step)
            command = await self._test_command(container)
            result = await container.execute(*command, timeout_s=step.verifier_s)
            await container.end()
            written = ""
            for name in REWARD_FILES:
                written = written or await container.text(f"{_LOGS}/verifier/{name}")
            return TestRun(result=result, written=written)

    async def _copy_tests(self, container: TaskContainer, step: TerminalStep) -> None:
        await container.make_folders(_LOGS, f"{_LOGS}/verifier", _TESTS)
        if self._task.verifier is not None and self._task.verifier.image:
            return  # its image has the tests
        for folder in step.tests:
            copied = await container.copy_folder(self._task.folder / folder, _TESTS)
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


async def _healthy(container: Container, task: TerminalTask, service: TerminalService) -> None:
    """Waits for a service. Raises: SandboxError when its health check does not succeed in time."""
    give_up_at = monotonic() + service.start_s
    while service.health:
        result = await container.execute(*service.health, timeout_s=COMMAND_S)
        if result.outcome is Outcome.PASSED:
            return
        if monotonic() >= give_up_at:
            raise SandboxError(
                f"cannot start the service {service.name!r} of the terminal task {task.name!r}: its health check ended "
                f"with {result.outcome.value}: {result.stderr.strip()[-300:]!r}; correct the service",
                code="environment.service_failed",
            )
        await asyncio.sleep(_HEALTH_S)


async def _placed(container: TaskContainer, path: str, archive: Path, *, is_folder: bool) -> bool:
    """Replaces a folder, or else a file or folder, by what the policy left; returns whether that worked."""
    parent = path if is_folder else str(PurePosixPath(path).parent)
    await container.execute("sh", "-c", _EMPTIED, path, parent, timeout_s=COMMAND_S)
    with archive.open("rb") as source:
        if not await container.unpack(source, path):
            return False
    for script in (_IS_PLAIN, PLACE_LINKS):
        if (await container.execute("sh", "-c", script, path, timeout_s=COMMAND_S)).outcome is not Outcome.PASSED:
            return False
    return True


def _digest(task: TerminalTask, source: str) -> str:
    """Returns a digest of the names and contents of all files, as a tag of the image."""
    digest = hashlib.sha256()
    for path in paths_below(task.folder, source):
        content = task_file(task.folder, path, limit=_MAX_CONTEXT_BYTES) or b""
        digest.update(f"{path}\n{len(content)}\n".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:32]
