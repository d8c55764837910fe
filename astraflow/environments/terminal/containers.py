"""Runner of terminal tasks in containers, by the command line of Docker or Podman."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from astraflow.datasets.worlds.terminal import TerminalTask
from astraflow.environments.container_engine import COMMAND_S, ContainerEngine
from astraflow.environments.terminal.runners import Verdict, reward_of
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

_KEPT_FOLDER = "/tmp/.astraflow-folder"  # noqa: S108 (inside the container)


class ContainerRunner:
    """Builds the image of a task once, and gives each episode a container of its own, without network unless
    `has_network`. Variables of the shell do not last from one command to the next; the working directory does."""

    def __init__(self, program: str, *, has_network: bool) -> None:
        self._engine = ContainerEngine(program)
        self._has_network = has_network
        self._building = asyncio.Lock()
        self._images: set[str] = set()

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager["ContainerSession"]:
        """Builds the image, unless it exists, and starts a container."""
        return self._opened(task)

    async def check(self) -> None:
        """Checks that the container engine answers. Raises: InvalidInput, Unavailable."""
        await self._engine.check()

    @asynccontextmanager
    async def _opened(self, task: TerminalTask) -> AsyncIterator["ContainerSession"]:
        image = task.image or await self._built(task)
        async with self._engine.container(
            image,
            network="" if self._has_network else "none",
            memory_bytes=task.memory_bytes,
            cpus=task.cpus,
            label="terminal",
            start_s=task.build_s,
        ) as container:
            yield ContainerSession(container, task)

    async def _built(self, task: TerminalTask) -> str:
        folder = task.folder / "environment"
        tag = f"astraflow-terminal:{_digest(folder)}"
        async with self._building:
            if tag not in self._images:
                await self._engine.done("build", "--quiet", "--tag", tag, str(folder), timeout_s=task.build_s)
                self._images.add(tag)
        return tag


class TaskContainer(Protocol):
    """Container of one task."""

    async def execute(self, *command: str, timeout_s: float) -> JobResult:
        """Runs a command in the container, which stops it. Raises: SandboxError."""

    async def copy_folder(self, source: Path, target: str) -> JobResult:
        """Copies the contents of a folder of this machine into a folder of the container. Raises: SandboxError."""


class ContainerSession:
    """Commands in one container."""

    def __init__(self, container: TaskContainer, task: TerminalTask) -> None:
        self._container = container
        self._task = task

    async def run(self, command: str, *, timeout_s: float) -> JobResult:
        """Runs a command in the folder where the last one ended."""
        script = f"cd \"$(cat {_KEPT_FOLDER} 2>/dev/null || pwd)\"; trap 'pwd > {_KEPT_FOLDER}' EXIT\n{command}"
        return await self._container.execute("bash", "-c", script, timeout_s=timeout_s)

    async def verify(self, *, timeout_s: float) -> Verdict:
        """Copies the tests into the container and runs them there. What the policy wrote to their folders before, such
        as a reward of its own, is removed; a container in which it cannot be removed has the reward 0."""
        removed = await self._container.execute("rm", "-rf", "/logs/verifier", "/tests", timeout_s=COMMAND_S)
        if removed.outcome is not Outcome.PASSED:
            return Verdict(reward=0.0, output=f"{removed.stdout}{removed.stderr}")
        await self._container.execute("mkdir", "-p", "/logs/verifier", "/tests", timeout_s=COMMAND_S)
        copied = await self._container.copy_folder(self._task.folder / "tests", "/tests")
        if copied.outcome is not Outcome.PASSED:
            raise SandboxError(
                f"cannot copy the tests of task {self._task.name!r}: {copied.stderr.strip()[-300:]!r}; check the "
                "container engine",
                code="environment.container_failed",
            )
        result = await self._container.execute("bash", "/tests/test.sh", timeout_s=timeout_s)
        output = f"{result.stdout}{result.stderr}"
        if result.outcome is Outcome.TIMEOUT:
            return Verdict(reward=0.0, output=output, is_timeout=True)
        written = await self._container.execute("cat", "/logs/verifier/reward.txt", timeout_s=COMMAND_S)
        return Verdict(reward=reward_of(self._task, written, output), output=output)


def _digest(folder: Path) -> str:
    """Returns a digest of the names and contents of all files, as a tag of the image."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder)}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]
