"""Runner of terminal tasks in containers, by the command line of Docker or Podman."""

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import monotonic

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.datasets.terminal import TerminalTask
from astraflow.environments.terminal_runners import Verdict, reward_of
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

_COMMAND_S = 120.0
"""Timeout of commands of the container engine that do not run code of the policy."""
_GRACE_S = 10.0
_MAX_OUTPUT_BYTES = 2**20
_TIMED_OUT = 124
"""Exit status of `timeout` when it stopped the command; 137 when it had to kill it."""
_KEPT_FOLDER = "/tmp/.astraflow-folder"  # noqa: S108 (inside the container)
_PROCESSES = 512


class ContainerRunner:
    """Builds the image of a task once, and gives each episode a container of its own, without network unless
    `has_network`. Variables of the shell do not last from one command to the next; the working directory does."""

    def __init__(self, program: str, *, has_network: bool) -> None:
        self._program = program
        self._has_network = has_network
        self._building = asyncio.Lock()
        self._images: set[str] = set()

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager["_ContainerSession"]:
        """Builds the image, unless it exists, and starts a container."""
        return self._opened(task)

    async def check(self) -> None:
        """Checks that the container engine answers. Raises: InvalidInput, Unavailable."""
        if shutil.which(self._program) is None:
            raise InvalidInput(
                f"cannot run terminal tasks in containers: the program {self._program!r} is not installed; install it, "
                "or use the runner sandbox",
                code="environment.no_container_engine",
            )
        result = await self.call("version", timeout_s=_COMMAND_S)
        if result.outcome is not Outcome.PASSED:
            raise Unavailable(
                f"cannot run terminal tasks in containers: {self._program} answers {result.stderr.strip()[-300:]!r}; "
                "start its service, and give this user access",
                code="environment.container_engine_failed",
            )

    @asynccontextmanager
    async def _opened(self, task: TerminalTask) -> AsyncIterator["_ContainerSession"]:
        image = task.image or await self._built(task)
        network = () if self._has_network else ("--network", "none")
        limits = ("--memory", f"{task.memory_bytes}b", "--cpus", f"{task.cpus:g}", "--pids-limit", str(_PROCESSES))
        options = ("--detach", "--rm", "--label", "astraflow=terminal", *network, *limits)
        # `sleep` as the command would be an argument of the image's entry point
        result = await self._done("run", *options, "--entrypoint", "sleep", image, "infinity", timeout_s=task.build_s)
        container = result.stdout.strip().splitlines()[-1]
        try:
            yield _ContainerSession(self, container, task)
        finally:
            await self.call("rm", "--force", container, timeout_s=_COMMAND_S)

    async def _built(self, task: TerminalTask) -> str:
        folder = task.folder / "environment"
        tag = f"astraflow-terminal:{_digest(folder)}"
        async with self._building:
            if tag not in self._images:
                await self._done("build", "--quiet", "--tag", tag, str(folder), timeout_s=task.build_s)
                self._images.add(tag)
        return tag

    async def _done(self, *arguments: str, timeout_s: float) -> JobResult:
        """Runs a command of the engine. Raises: SandboxError when it fails."""
        result = await self.call(*arguments, timeout_s=timeout_s)
        if result.outcome is not Outcome.PASSED or (arguments[0] == "run" and not result.stdout.strip()):
            raise SandboxError(
                f"cannot run a terminal task: {self._program} {arguments[0]} ended with {result.outcome.value}: "
                f"{result.stderr.strip()[-300:]!r}; check the container engine and the task's Dockerfile",
                code="environment.container_failed",
            )
        return result

    async def call(self, *arguments: str, timeout_s: float) -> JobResult:
        """Runs a command of the engine, and returns its result."""
        began = monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                self._program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as problem:
            raise SandboxError(
                f"cannot run {self._program!r}: {problem}; install it", code="environment.container_failed"
            ) from problem
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


class _ContainerSession:
    """Commands in one container."""

    def __init__(self, runner: ContainerRunner, container: str, task: TerminalTask) -> None:
        self._runner = runner
        self._container = container
        self._task = task

    async def run(self, command: str, *, timeout_s: float) -> JobResult:
        """Runs a command in the folder where the last one ended."""
        script = f"cd \"$(cat {_KEPT_FOLDER} 2>/dev/null || pwd)\"; trap 'pwd > {_KEPT_FOLDER}' EXIT\n{command}"
        return await self._execute("bash", "-c", script, timeout_s=timeout_s)

    async def verify(self, *, timeout_s: float) -> Verdict:
        """Copies the tests into the container and runs them there."""
        await self._runner.call(
            "exec", self._container, "mkdir", "-p", "/logs/verifier", "/tests", timeout_s=_COMMAND_S
        )
        tests = f"{self._task.folder / 'tests'}/."
        copied = await self._runner.call("cp", tests, f"{self._container}:/tests", timeout_s=_COMMAND_S)
        if copied.outcome is not Outcome.PASSED:
            raise SandboxError(
                f"cannot copy the tests of task {self._task.name!r}: {copied.stderr.strip()[-300:]!r}; check the "
                "container engine",
                code="environment.container_failed",
            )
        result = await self._execute("bash", "/tests/test.sh", timeout_s=timeout_s)
        output = f"{result.stdout}{result.stderr}"
        if result.outcome is Outcome.TIMEOUT:
            return Verdict(reward=0.0, output=output, is_timeout=True)
        written = await self._runner.call(
            "exec", self._container, "cat", "/logs/verifier/reward.txt", timeout_s=_COMMAND_S
        )
        return Verdict(reward=reward_of(self._task, written, output), output=output)

    async def _execute(self, *command: str, timeout_s: float) -> JobResult:
        """Runs a command in the container, which stops it: ending the engine's client would not."""
        stopped = ("timeout", "--kill-after", "2", f"{timeout_s:g}")
        result = await self._runner.call("exec", self._container, *stopped, *command, timeout_s=timeout_s + _GRACE_S)
        outcome = result.outcome
        if result.exit_status in (_TIMED_OUT, 128 + 9) and result.wall_s >= timeout_s:
            outcome = Outcome.TIMEOUT
        return JobResult(
            outcome=outcome,
            exit_status=None if outcome is Outcome.TIMEOUT else result.exit_status,
            stdout=result.stdout,
            stderr=result.stderr,
            wall_s=result.wall_s,
        )


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Reads a stream to its end; what exceeds the limit is discarded."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(2**16)):
        kept += chunk[: _MAX_OUTPUT_BYTES - len(kept)]
    return bytes(kept)


def _digest(folder: Path) -> str:
    """Returns a digest of the names and contents of all files, as a tag of the image."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder)}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]
