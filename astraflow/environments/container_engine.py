"""Containers, by the command line of Docker or Podman."""

import asyncio
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from secrets import token_hex
from time import monotonic
from typing import IO

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.environments.container_limits import ContainerLimits, limit_options
from astraflow.runtime.config.base import is_image_name
from astraflow.runtime.logs import get_logger
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

log = get_logger()

COMMAND_S = 120.0
"""Timeout of commands of the container engine that do not run code of the policy."""
GRACE_S = 10.0
"""Further time for a command that its container stops. Seconds."""
ARCHIVE_BYTES = 2**29
"""Limit of a folder that is copied from a container to another one, as an archive."""
OUTPUT_BYTES = 2**20
_FILE_BYTES = 2**16
"""Limit of an archive with one short file."""
_TEXT_BYTES = 4096
_ENDED_STATES = ("exited", "stopped", "dead")
_OUT_OF_MEMORY = " (out of memory)"
_NO_QUOTA = re.compile(r"storage.?opt|quota|backing filesystem|pquota", re.IGNORECASE)
"""Answers of engines whose storage cannot limit the disk of a container."""
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
_QUIET = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
"""Variables without which Podman adds warnings to the output of commands, which a policy would read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCommand:
    """Command of a container that serves others."""

    name: str
    """Name by which other containers of its network reach it."""
    variables: Mapping[str, str]
    entrypoint: Sequence[str]
    """Program and first arguments; empty: those of the image."""
    command: Sequence[str]
    """Further arguments; empty with an empty entrypoint: those of the image."""


class OutOfResources(SandboxError):
    """A container has ended because its programs used up memory or disk: an outcome of theirs, no failure."""


def out_of_resources(cause: str) -> OutOfResources:
    """Returns the error for a container that ended. cause: what its engine or cluster says."""
    return OutOfResources(
        f"cannot continue in the container: it ended: {cause}; give its task more memory or disk",
        code="environment.out_of_resources",
    )


class ContainerEngine:
    """Container engine of this machine. program: `docker` or `podman`."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._has_quotas = True
        """The storage of the engine may limit the disk of a container; False after it refused to."""

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
        limits: ContainerLimits,
        label: str,
        start_s: float,
        mounts: Mapping[Path, str] | None = None,
        service: ServiceCommand | None = None,
    ) -> AbstractAsyncContextManager["Container"]:
        """Starts a container that waits for commands, or runs a service, and removes it at the end.

        network: of the engine; empty: its default. mounts: paths in the container by folders of this machine. Raises:
        InvalidInput for what is no name of an image; SandboxError.
        """
        if not is_image_name(image):
            raise InvalidInput(
                f"cannot start a container: {image[:200]!r} is not the name of an image; correct it",
                code="environment.invalid_image",
            )
        networks = ("--network", network) if network else ()
        volumes = [word for folder, path in (mounts or {}).items() for word in ("--volume", f"{folder}:{path}")]
        options = ["--detach", "--label", f"astraflow={label}", *networks, *limit_options(limits), *volumes]
        # `sleep` as the command would be an argument of the image's entry point
        command = ("--entrypoint", "sleep", image, "infinity")
        if service is not None:
            options += ["--network-alias", service.name]
            options += [word for name, value in service.variables.items() for word in ("--env", f"{name}={value}")]
            program = ("--entrypoint", service.entrypoint[0]) if service.entrypoint else ()
            command = (*program, image, *service.entrypoint[1:], *service.command)
        return self._container(command, options, limits.disk_bytes, start_s)

    @asynccontextmanager
    async def private_network(self) -> AsyncIterator[str]:
        """Makes a network that reaches only its own containers; yields its name, and removes it at the end.

        Raises: SandboxError.
        """
        name = f"astraflow-{token_hex(8)}"
        await self.done("network", "create", "--internal", name, timeout_s=COMMAND_S)
        try:
            yield name
        finally:
            await self.call("network", "rm", "--force", name, timeout_s=COMMAND_S)

    @asynccontextmanager
    async def _container(
        self, command: Sequence[str], options: Sequence[str], disk_bytes: int, start_s: float
    ) -> AsyncIterator["Container"]:
        name = f"astraflow-{token_hex(8)}"
        pauses_s: Sequence[float] = _REMOVAL_PAUSES_S
        try:
            result = await self._run(name, command, options, disk_bytes, start_s)
            if result.outcome is not Outcome.TIMEOUT:
                pauses_s = (0.0,)
            self._check(result, "run")
            name = result.stdout.strip().splitlines()[-1]
            yield Container(self, name)
        finally:
            await self._remove(name, pauses_s)

    async def _run(
        self, name: str, command: Sequence[str], options: Sequence[str], disk_bytes: int, start_s: float
    ) -> JobResult:
        """Starts a container with a limit of its disk, or without one on storage that has no quotas."""
        if self._has_quotas:
            quota = ("--storage-opt", f"size={disk_bytes}")
            result = await self.call("run", "--name", name, *options, *quota, *command, timeout_s=start_s)
            if result.outcome is not Outcome.FAILED or _NO_QUOTA.search(result.stderr) is None:
                return result
            self._has_quotas = False
            log.warning("container_disk_not_limited", program=self.program, cause=result.stderr.strip()[-300:])
            await self.call("rm", "--force", name, timeout_s=COMMAND_S)  # Podman has created it
        return await self.call("run", "--name", name, *options, *command, timeout_s=start_s)

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
        self,
        *arguments: str,
        timeout_s: float,
        stdin: str | IO[bytes] = "",
        stdout: IO[bytes] | None = None,
        output_bytes: int = OUTPUT_BYTES,
        variables: Mapping[str, str] | None = None,
    ) -> JobResult:
        """Runs a command of the engine, and returns its result. variables: added to its environment. stdout: file to
        which its output goes. output_bytes: limit of its output and of its errors; the rest is discarded."""
        began = monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                self.program,
                *arguments,
                stdin=_input_of(stdin),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **_QUIET, **(variables or {})},
            )
        except OSError as problem:
            raise SandboxError(
                f"cannot run {self.program!r}: {problem}; install it", code="environment.container_failed"
            ) from problem
        if process.stdin is not None and isinstance(stdin, str):
            process.stdin.write(stdin.encode(errors="replace"))
            process.stdin.close()
        outputs = [
            asyncio.create_task(_read(process.stdout, output_bytes, stdout)),
            asyncio.create_task(_read(process.stderr, OUTPUT_BYTES)),
        ]
        try:
            _, unfinished = await asyncio.wait(outputs, timeout=timeout_s)
        finally:
            if process.returncode is None and any(not output.done() for output in outputs):
                process.kill()
        outcome = Outcome.TIMEOUT if unfinished else Outcome.FAILED if await process.wait() else Outcome.PASSED
        texts = [(await output)[0].decode(errors="replace") for output in outputs]
        return JobResult(
            outcome=outcome,
            exit_status=process.returncode if outcome is not Outcome.TIMEOUT else None,
            stdout=texts[0],
            stderr=texts[1],
            wall_s=monotonic() - began,
            is_output_cut=(await outputs[0])[1],
        )


_ARE_WRITABLE = 'for folder in "$0" "$@"; do [ -w "$folder" ] || exit 1; done'


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
        """Raises: OutOfResources when the container ended because its programs used up the memory; SandboxError when
        it does not run for another reason: what a command reported is then the engine's word."""
        cause = await self._status()
        if cause.endswith(_OUT_OF_MEMORY) and not cause.startswith("running"):
            raise out_of_resources(cause)
        if not cause.startswith("running"):
            raise SandboxError(
                f"cannot continue in container {self.name[:12]!r}: it is not running ({cause}); look for what ended it",
                code="environment.container_failed",
            )

    async def make_folders(self, *paths: str) -> JobResult:
        """Makes folders, each below the root folder or below one before it; returns the failure where the container's
        user cannot write one. In Podman, root without capabilities cannot write the root folder; its `cp` can."""
        mkdir_result = await self.execute("mkdir", "-p", *paths, timeout_s=COMMAND_S)
        if mkdir_result.outcome is Outcome.PASSED:
            return mkdir_result
        with tempfile.TemporaryDirectory(prefix="astraflow-container-") as empty:
            for path in paths:
                await self.copy_folder(Path(empty), path)
        checked = await self.execute("sh", "-c", _ARE_WRITABLE, *paths, timeout_s=COMMAND_S)
        return checked if checked.outcome is Outcome.PASSED else mkdir_result

    async def copy_folder(self, source: Path, target: str) -> JobResult:
        """Copies the contents of a folder of this machine, an absolute path, into a folder of the container, which
        exists."""
        return await self._engine.call("cp", f"{source}/.", f"{self.name}:{target}", timeout_s=COMMAND_S)

    async def end(self) -> None:
        """Ends all processes of the container. Raises: SandboxError."""
        await self._engine.call("kill", self.name, timeout_s=COMMAND_S)
        status = await self._status()
        if status.removesuffix(_OUT_OF_MEMORY) not in _ENDED_STATES:
            raise SandboxError(
                f"cannot end container {self.name[:12]!r}: its state is {status!r}; check the container engine",
                code="environment.container_failed",
            )

    async def freeze(self) -> None:
        """Suspends all processes of the container. Raises: SandboxError."""
        await self._engine.done("pause", self.name, timeout_s=COMMAND_S)

    async def thaw(self) -> None:
        """Continues the processes of a frozen container. Raises: SandboxError."""
        await self._engine.done("unpause", self.name, timeout_s=COMMAND_S)

    async def pack(self, path: str, target: IO[bytes]) -> bool:
        """Writes a folder of the container to an archive; returns whether it could be read and is not too large."""
        copied = await self._engine.call(
            "cp", "--archive", f"{self.name}:{path}", "-", timeout_s=COMMAND_S, stdout=target,
            output_bytes=ARCHIVE_BYTES,
        )  # fmt: skip
        return copied.outcome is Outcome.PASSED and not copied.is_output_cut

    async def unpack(self, source: IO[bytes], path: str) -> bool:
        """Fills the folder `path` from an archive; returns whether that worked."""
        parent = str(PurePosixPath(path).parent)
        target = f"{self.name}:{parent}"
        copied = await self._engine.call("cp", "--archive", "-", target, timeout_s=COMMAND_S, stdin=source)
        return copied.outcome is Outcome.PASSED

    async def text(self, path: str) -> str:
        """Returns the begin of a file of the container; empty without one."""
        archive = BytesIO()
        copied = await self._engine.call(
            "cp", f"{self.name}:{path}", "-", timeout_s=COMMAND_S, stdout=archive, output_bytes=_FILE_BYTES
        )
        return _text_in(archive.getvalue()) if copied.outcome is Outcome.PASSED else ""

    async def _status(self) -> str:
        """Returns the state of the container, or what the engine says instead."""
        state = f"{{{{.State.Status}}}}{{{{if .State.OOMKilled}}}}{_OUT_OF_MEMORY}{{{{end}}}}"
        result = await self._engine.call("inspect", "--format", state, self.name, timeout_s=COMMAND_S)
        return result.stdout.strip() or result.stderr.strip()[-300:] or result.outcome.value


def _text_in(archive: bytes) -> str:
    """Returns the begin of the file in an archive of the engine, which is not compressed; empty for anything else."""
    try:
        with tarfile.open(fileobj=BytesIO(archive), mode="r:") as members:
            member = members.next()
            file = members.extractfile(member) if member is not None and member.isreg() else None
            return "" if file is None else file.read(_TEXT_BYTES).decode(errors="replace")
    except (tarfile.TarError, ValueError, OSError):
        return ""


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


def _input_of(stdin: str | IO[bytes]) -> int | IO[bytes]:
    if isinstance(stdin, str):
        return asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL
    return stdin


async def _read(stream: asyncio.StreamReader | None, limit: int, target: IO[bytes] | None = None) -> tuple[bytes, bool]:
    """Reads a stream to its end, into a file if there is one; what exceeds the limit is discarded. Returns what is not
    in the file, and whether a part was discarded."""
    output = bytearray()
    size = 0
    while stream is not None and (chunk := await stream.read(2**16)):
        stored = chunk[: max(0, limit - size)]
        size += len(chunk)
        if target is None:
            output += stored
        elif stored:
            await asyncio.to_thread(target.write, stored)
    return bytes(output), size > limit
