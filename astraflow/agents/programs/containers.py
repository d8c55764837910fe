"""Agent programs that are commands in a container of Docker or Podman."""

import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import getsource
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from astraflow.agents.programs import programs
from astraflow.agents.programs.base import (
    AgentTask,
    ProgramExit,
    ProgramFeatures,
    RunningProgram,
    program_failure,
)
from astraflow.agents.programs.commands import CommandFields, command_of, sandbox_failures
from astraflow.environments.container_engine import COMMAND_S, Container, ContainerEngine
from astraflow.environments.container_limits import Capability, ContainerLimits
from astraflow.runtime.config.base import is_image_name
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.sandbox import forwarding
from astraflow.sandbox.base import Command, JobResult, Outcome
from astraflow.sandbox.forwarding import forwarded

_RELAY_BYTES = 128 * 2**20
_MOUNTED = "/run/astraflow"
_SOCKET = "calls"


class ContainerOptions(CommandFields):
    """Command in a container, its image and limits."""

    image: Annotated[str, SettableBy.RECIPE]
    """Image with the agent and the program `timeout` of GNU coreutils or BusyBox."""
    relay_image: Annotated[str, SettableBy.RECIPE] = ""
    """Image with `timeout` and `python3` (3.9 or newer) for the relay of model calls; empty: that of the agent."""
    runner: Annotated[Literal["docker", "podman"], SettableBy.RECIPE] = "docker"
    """Program that runs containers."""
    folder: Annotated[str, SettableBy.RECIPE] = "/work"
    """Working directory, which is created; `task.json` is there."""
    shares_network: Annotated[bool, SettableBy.RECIPE] = False
    """The container has the network of the node, so that the agent reaches everything that the node reaches. Otherwise
    it reaches the model calls of its session and nothing else."""
    memory_mib: int = Field(default=4096, ge=16)
    """Memory of a container. MiB."""
    disk_mib: int = Field(default=10_240, ge=16)
    """Size of each file of a container, and of all its files where the storage of the engine has quotas. MiB."""
    capabilities: Annotated[tuple[Capability, ...], SettableBy.RECIPE] = ()
    """Linux capabilities of root in the container, such as `CHOWN`; it has no others."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors of a container."""
    start_s: float = Field(default=600.0, gt=0)
    """Timeout for the container to start, the download of the image included."""

    @field_validator("image", "relay_image")
    @classmethod
    def _check_image(cls, name: str, info: ValidationInfo) -> str:
        if not is_image_name(name) and (name or info.field_name == "image"):
            raise ValueError(f"{name!r} is not the name of an image; write it as 'registry/team/image:1'")
        return name


@programs.register("container", options=ContainerOptions)
class ContainerProgram:
    """Gives each episode a container and runs a command in it.

    Without the network of the node, a second container relays the model calls: it shares the network of the first,
    which has none but its loopback, and a Unix socket of the node.
    """

    features = ProgramFeatures(has_files=True, has_commands=True)

    def __init__(self, options: ContainerOptions) -> None:
        self._options = options
        self._engine = ContainerEngine(options.runner)

    async def start(self) -> None:
        """Checks that the container engine answers. Raises: InvalidInput, Unavailable."""
        await self._engine.check()

    async def close(self) -> None:
        """Has nothing to release: each episode removes its container."""

    @asynccontextmanager
    async def open(self, task: AgentTask) -> AsyncIterator[RunningProgram]:
        options = self._options
        with sandbox_failures():
            async with AsyncExitStack() as resources:
                container = await resources.enter_async_context(
                    self._engine.container(
                        options.image,
                        network="host" if options.shares_network else "none",
                        limits=ContainerLimits(
                            memory_bytes=options.memory_mib * 2**20,
                            cpus=options.cpus,
                            disk_bytes=options.disk_mib * 2**20,
                            capabilities=options.capabilities,
                        ),
                        label="agent",
                        start_s=options.start_s,
                    )
                )
                relay = None
                if not options.shares_network:
                    relay = await resources.enter_async_context(self._relayed(container, task.port))
                yield _RunningContainer(container, relay, options.folder, command_of(options, task, {}))

    @asynccontextmanager
    async def _relayed(self, container: Container, port: int) -> AsyncIterator[Container]:
        """Makes `port` of the container's loopback reach the same port of this machine's, by the container that it
        provides."""
        options, folder = self._options, Path(tempfile.mkdtemp(prefix="astraflow-relay-"))
        try:
            listener = _listening_in(folder)
            relaying = self._engine.container(
                options.relay_image or options.image,
                network=f"container:{container.name}",
                limits=ContainerLimits(memory_bytes=_RELAY_BYTES, cpus=options.cpus, disk_bytes=_RELAY_BYTES),
                label="relay",
                start_s=options.start_s,
                mounts={folder: _MOUNTED},
            )
            async with forwarded(listener, port), relaying as relay:
                command = ("python3", "-c", getsource(forwarding), str(port), f"{_MOUNTED}/{_SOCKET}")
                result = await relay.execute(*command, timeout_s=COMMAND_S)
                if result.outcome is not Outcome.PASSED:
                    cause = f"model calls cannot be relayed into the container: {result.stderr.strip()[-300:]!r}"
                    remedy = "name a relay_image with timeout and python3"
                    raise program_failure(cause, remedy, code="agent.container_failed")
                yield relay
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _listening_in(folder: Path) -> socket.socket:
    """Returns a listening socket, which the relay may use as any user."""
    folder.chmod(0o711)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / _SOCKET))
    (folder / _SOCKET).chmod(0o666)
    listener.listen()
    return listener


class _RunningContainer:
    """Command in an open container."""

    def __init__(self, container: Container, relay: Container | None, folder: str, command: Command) -> None:
        self._container = container
        self._relay = relay
        self._folder = folder
        self._command = command

    async def run(self, *, timeout_s: float) -> ProgramExit:
        """Runs the command. Raises: SandboxError when it failed without a relay of its model calls."""
        result = await self.execute(self._command, timeout_s=timeout_s)
        if result.outcome is not Outcome.PASSED and self._relay is not None:
            await self._relay.check_running()
        return ProgramExit.of(result)

    async def read(self, path: str) -> str | None:
        result = await self._container.execute("cat", "--", path, timeout_s=COMMAND_S, folder=self._folder)
        return result.stdout if result.outcome is Outcome.PASSED else None

    async def execute(self, command: Command, *, timeout_s: float) -> JobResult:
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
            mkdir_result = await self._container.make_folders(self._folder)
            copied = await self._container.copy_folder(folder, self._folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for result in (mkdir_result, copied):
            if result.outcome is not Outcome.PASSED:
                cause = f"files cannot be copied into the container: {result.stderr.strip()[-300:]!r}"
                raise program_failure(cause, "check the container engine", code="agent.container_failed")
