"""Agent programs that are commands in a container of Docker or Podman."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from astraflow.agents.programs import programs
from astraflow.agents.programs.base import (
    AgentTask,
    ProgramExit,
    ProgramFeatures,
    RunningProgram,
    program_failure,
)
from astraflow.agents.programs.commands import CommandFields, command_of, sandbox_failures
from astraflow.contract.errors import InvalidInput
from astraflow.environments.container_engine import COMMAND_S, Container, ContainerEngine
from astraflow.runtime.setting_permissions import SettableBy
from astraflow.sandbox.base import Command, JobResult, Outcome


class ContainerOptions(CommandFields):
    """Command in a container, its image and limits."""

    image: Annotated[str, SettableBy.RECIPE] = Field(min_length=1)
    """Image with the agent and the program `timeout` of GNU coreutils or BusyBox."""
    runner: Literal["docker", "podman"] = "docker"
    """Program that runs containers."""
    folder: Annotated[str, SettableBy.RECIPE] = "/work"
    """Working directory, which is created; `task.json` is there."""
    shares_network: Annotated[bool, SettableBy.RECIPE] = False
    """Must be true: the container has the network of the node, because model calls are answered on the node's
    loopback. The agent then reaches everything that the node reaches."""
    memory_mib: int = Field(default=4096, ge=16)
    """Memory of a container. MiB."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors of a container."""
    start_s: float = Field(default=600.0, gt=0)
    """Timeout for the container to start, the download of the image included."""


@programs.register("container", options=ContainerOptions)
class ContainerProgram:
    """Gives each episode a container and runs a command in it. The container has the network of the node."""

    features = ProgramFeatures(has_files=True, has_commands=True)

    def __init__(self, options: ContainerOptions) -> None:
        if not options.shares_network:
            raise InvalidInput(
                "cannot run agents in containers without a network: model calls are answered on the loopback address "
                "of the node; set shares_network = true where the agent may reach all that the node reaches, or use "
                "the program 'command', whose sandbox reaches the model calls only",
                code="agent.container_network",
            )
        self._options = options
        self._engine = ContainerEngine(options.runner)

    async def start(self) -> None:
        """Checks that the container engine answers. Raises: InvalidInput, Unavailable."""
        await self._engine.check()

    async def close(self) -> None:
        """Has nothing to release: each episode removes its container."""

    def open(self, task: AgentTask) -> AbstractAsyncContextManager[RunningProgram]:
        """Starts a container."""
        return self._opened(task)

    @asynccontextmanager
    async def _opened(self, task: AgentTask) -> AsyncIterator[RunningProgram]:
        options = self._options
        with sandbox_failures():
            async with self._engine.container(
                options.image,
                network="host",
                memory_bytes=options.memory_mib * 2**20,
                cpus=options.cpus,
                label="agent",
                start_s=options.start_s,
            ) as container:
                yield _RunningContainer(container, options.folder, command_of(options, task, {}))


class _RunningContainer:
    """Command in an open container."""

    def __init__(self, container: Container, folder: str, command: Command) -> None:
        self._container = container
        self._folder = folder
        self._command = command

    async def run(self, *, timeout_s: float) -> ProgramExit:
        """Runs the command."""
        return ProgramExit.of(await self.execute(self._command, timeout_s=timeout_s))

    async def read(self, path: str) -> str | None:
        """Returns the text of a file."""
        result = await self._container.execute("cat", "--", path, timeout_s=COMMAND_S, folder=self._folder)
        return result.stdout if result.outcome is Outcome.PASSED else None

    async def execute(self, command: Command, *, timeout_s: float) -> JobResult:
        """Writes the files of a command and runs it."""
        await self._write(command.files)
        return await self._container.execute(
            *command.arguments,
            timeout_s=timeout_s,
            folder=self._folder,
            stdin=command.stdin,
            variables=command.environment,
        )

    async def _write(self, files: Mapping[str, str]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="astraflow-agent-"))
        try:
            for name, text in files.items():
                (folder / name).write_text(text)
            mkdir_result = await self._container.execute("mkdir", "-p", self._folder, timeout_s=COMMAND_S)
            copied = await self._container.copy_folder(folder, self._folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for result in (mkdir_result, copied):
            if result.outcome is not Outcome.PASSED:
                cause = f"files cannot be copied into the container: {result.stderr.strip()[-300:]!r}"
                raise program_failure(cause, "check the container engine", code="agent.container_failed")
