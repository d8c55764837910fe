"""Containers, by the command line of Docker or Podman."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from time import monotonic

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

COMMAND_S = 120.0
"""Timeout of commands of the container engine that do not run code of the policy."""
GRACE_S = 10.0
"""Further time for a command that its container stops. Seconds."""
_MAX_OUTPUT_BYTES = 2**20
_TIMED_OUT = 124
"""Exit status of `timeout` when it stopped the command; 137 when it had to kill it."""
_ENGINE_STATUS = 125
"""Lowest exit status of a command whose container was ended. Commands may end with it, too."""
_START_ATTEMPTS = 3
"""Podman with runc fails to start about one of 500 commands on a busy machine; such a command had no effect."""
_MARKED = 'printf %s "$0"; exec "$@"'
"""Writes a mark before the command runs. Without it, the engine's own failure would be an answer that a policy reads,
or a verdict: neither exit status nor text tells, since the command chooses both."""
_REMOVAL_PAUSES_S = (0.0, 1.0, 4.0)
"""Pauses before the attempts to remove a container whose start did not complete: the engine may go on creating it
after its client has ended."""
_PROCESSES = 512
_QUIET = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
"""Variables without which Podman adds warnings to the output of commands, which a policy would read."""


class ContainerEngine:
    """Container engine of this machine. program: `docker` or `podman`."""

    def __init__(self, program: str) -> None:
        self.program = program

    async def check(self) -> None:
        """Checks that the engine answers. Raises: InvalidInput, Unavailable."""
        if shutil.which(self.program) is None:
            raise InvalidInput(
                f"cannot use containers: the program {self.program!r} is not installed; install it, or use the sandbox",
                code="environment.no_container_engine",
            )
        result = await self.call("version", timeout_s=COMMAND_S)
        if result.outcome is not Outcome.PASSED:
            raise Unavailable(
                f"cannot use containers: {self.program} answers {result.stderr.strip()[-300:]!r}; start its service, "
                "and give this user access",
                code="environment.container_engine_failed",
            )

    def container(
        self,
        image: str,
        *,
        network: str,
        memory_bytes: int,
        cpus: float,
        label: str,
        start_s: float,
        mounts: Mapping[Path, str] | None = None,
    ) -> AbstractAsyncContextManager["Container"]:
        """Starts a container that waits for commands, and removes it at the end. network: of the engine; empty: its
        default. mounts: paths in the container by folders of this machine. Raises: SandboxError."""
        # Podman waits ten seconds for the first process to obey its stop signal, which `sleep` does not
        limits = (
            "--stop-signal",
            "KILL",
            "--memory",
            f"{memory_bytes}b",
            "--cpus",
            f"{cpus:g}",
            "--pids-limit",
            str(_PROCESSES),
        )
        networks = ("--network", network) if network else ()
        volumes = [word for folder, path in (mounts or {}).items() for word in ("--volume", f"{folder}:{path}")]
        return self._container(
            image, ("--detach", "--rm", "--label", f"astraflow={label}", *networks, *limits, *volumes), start_s
        )

    @asynccontextmanager
    async def _container(self, image: str, options: Sequence[str], start_s: float) -> AsyncIterator["Container"]:
        name = f"astraflow-{token_hex(8)}"
        pauses_s: Sequence[float] = _REMOVAL_PAUSES_S
        # `sleep` as the command would be an argument of the image's entry point
        command = ("run", "--name", name, *options, "--entrypoint", "sleep", image, "infinity")
        try:
            result = await self.call(*command, timeout_s=start_s)
            if result.outcome is not Outcome.TIMEOUT:
                pauses_s = (0.0,)
            self._check(result, "run")
            name = result.stdout.strip().splitlines()[-1]
            yield Container(self, name)
        finally:
            await self._remove(name, pauses_s)

    async def done(self, *arguments: str, timeout_s: float) -> JobResult:
        """Runs a command of the engine. Raises: SandboxError when it fails."""
        result = await self.call(*arguments, timeout_s=timeout_s)
        self._check(result, arguments[0])
        return result

    def _check(self, result: JobResult, verb: str) -> None:
        if result.outcome is not Outcome.PASSED or (verb == "run" and not result.stdout.strip()):
            raise SandboxError(
                f"cannot use a container: {self.program} {verb} ended with {result.outcome.value}: "
                f"{result.stderr.strip()[-300:]!r}; check the container engine, and the image or its Dockerfile",
                code="environment.container_failed",
            )

    async def _remove(self, name: str, pauses_s: Sequence[float]) -> None:
        """Removes a container, in one attempt after each pause until the engine has named it as removed."""
        for pause_s in pauses_s:
            await asyncio.sleep(pause_s)
            if (await self.call("rm", "--force", name, timeout_s=COMMAND_S)).stdout.strip():
                return

    async def call(
        self, *arguments: str, timeout_s: float, stdin: str = "", variables: Mapping[str, str] | None = None
    ) -> JobResult:
        """Runs a command of the engine, and returns its result. variables: added to its environment."""
        began = monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                self.program,
                *arguments,
                stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **_QUIET, **(variables or {})},
            )
        except OSError as problem:
            raise SandboxError(
                f"cannot run {self.program!r}: {problem}; install it", code="environment.container_failed"
            ) from problem
        if process.stdin is not None:
            process.stdin.write(stdin.encode(errors="replace"))
            process.stdin.close()
        outputs = [asyncio.create_task(_read(stream)) for stream in (process.stdout, process.stderr)]
        try:
            _, unfinished = await asyncio.wait(outputs, timeout=timeout_s)
        finally:
            if process.returncode is None and any(not output.done() for output in outputs):
                process.kill()
        outcome = Outcome.TIMEOUT if unfinished else Outcome.FAILED if await process.wait() else Outcome.PASSED
        stdout, stderr = [(await output).decode(errors="replace") for output in outputs]
        return JobResult(
            outcome=outcome,
            exit_status=process.returncode if outcome is not Outcome.TIMEOUT else None,
            stdout=stdout,
            stderr=stderr,
            wall_s=monotonic() - began,
        )


class Container:
    """A running container."""

    def __init__(self, engine: ContainerEngine, name: str) -> None:
        self.name = name
        """Id of the container."""
        self._engine = engine

    async def execute(
        self,
        *command: str,
        timeout_s: float,
        folder: str = "",
        stdin: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> JobResult:
        """Runs a command in the container, which stops it: ending the engine's client would not.

        folder: working directory; empty: that of the image. variables: of its environment; they do not appear on a
        command line. Raises: SandboxError when the container is not running any more.
        """
        options = [*(("--workdir", folder) if folder else ()), *(("--interactive",) if stdin else ())]
        options += [word for name in variables or () for word in ("--env", name)]
        for _ in range(_START_ATTEMPTS):
            mark = token_hex(8)
            result = await self._engine.call(
                "exec", *options, self.name, "sh", "-c", _MARKED, mark, *stopped_command(command, timeout_s),
                timeout_s=timeout_s + GRACE_S, stdin=stdin, variables=variables,
            )  # fmt: skip
            has_begun = result.stdout.startswith(mark)
            if not has_begun or _may_be_killed(result):
                await self.check_running()
            if has_begun:
                return with_timeout(replace(result, stdout=result.stdout.removeprefix(mark)), timeout_s)
            if result.outcome is not Outcome.FAILED:
                break
        raise SandboxError(
            f"cannot run a command in container {self.name[:12]!r}: {self._engine.program} exec ended with "
            f"{result.outcome.value} before the command began: {result.stderr.strip()[-300:]!r}; check the container "
            "engine, and that the image has `sh` and `timeout`",
            code="environment.command_not_started",
        )

    async def check_running(self) -> None:
        """Raises: SandboxError when the container does not run: what a command reported is then the engine's word."""
        status = await self._engine.call("inspect", "--format", "{{.State.Status}}", self.name, timeout_s=COMMAND_S)
        if status.stdout.strip() != "running":
            cause = status.stdout.strip() or status.stderr.strip()[-300:] or status.outcome.value
            raise SandboxError(
                f"cannot continue in container {self.name[:12]!r}: it is not running ({cause}); look for what ended it",
                code="environment.container_failed",
            )

    async def copy_folder(self, source: Path, target: str) -> JobResult:
        """Copies the contents of a folder of this machine into a folder of the container, which exists."""
        return await self._engine.call("cp", f"{source}/.", f"{self.name}:{target}", timeout_s=COMMAND_S)


def stopped_command(command: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """Returns the command with a time limit that its container enforces."""
    return ("timeout", "--kill-after", "2", f"{timeout_s:g}", *command)


def with_timeout(result: JobResult, timeout_s: float) -> JobResult:
    """Returns the result of a `stopped_command` with the outcome TIMEOUT, if its container stopped it."""
    is_late = result.exit_status in (_TIMED_OUT, 128 + 9) and result.wall_s >= timeout_s
    return replace(result, outcome=Outcome.TIMEOUT, exit_status=None) if is_late else result


def _may_be_killed(result: JobResult) -> bool:
    """Returns whether the end of the container may have ended a command that had begun; the command may pretend so."""
    return result.outcome is Outcome.TIMEOUT or (result.exit_status or 0) >= _ENGINE_STATUS


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Reads a stream to its end; what exceeds the limit is discarded."""
    output = bytearray()
    while stream is not None and (chunk := await stream.read(2**16)):
        output += chunk[: _MAX_OUTPUT_BYTES - len(output)]
    return bytes(output)
