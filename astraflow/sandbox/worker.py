"""One fork server as seen from the host."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes.child import ChildProcess
from astraflow.sandbox.base import SandboxError
from astraflow.sandbox.inside import folders
from astraflow.sandbox.isolation import Start

log = get_logger()

_GRACE_S = 15.0
"""Time beyond a job's wall limit after which the fork server is killed."""
_CLOSE_S = 5.0
"""Time for a fork server to end by itself before it is killed."""
_MAX_ANSWER_BYTES = 2**28
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8"}
"""Environment of the fork server: nothing of this process's, which holds tokens."""


class WorkerLost(Exception):
    """The fork server died or does not answer; what it ran has no result."""


class Worker:
    """Process with a fork server, which runs one job at a time."""

    def __init__(self, process: ChildProcess, folder: Path) -> None:
        self.process = process
        self.jobs = 0
        """Jobs that it has run. Count."""
        self._folder = folder
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.listener: socket.socket | None = None
        """Listening socket inside of the isolation, where the start has a port."""
        self._groups: set[int] = set()
        """Process groups of jobs that may run, where no namespace ends them with the fork server."""

    @classmethod
    async def started(cls, start: Start, *, timeout_s: float) -> Self:
        """Starts a fork server and waits until it is ready. Raises: SandboxError with the reason."""
        pairs = [socket.socketpair() for _ in range(1 if start.port is None else 2)]
        (ours, *channels), theirs = zip(*pairs, strict=True)
        with ExitStack() as ends:
            for channel in channels:
                ends.enter_context(channel)
            try:
                process = await _started_process(start, theirs)
            except BaseException:
                ours.close()
                await remove_folder(start.folder)
                raise
            finally:
                for end in theirs:
                    end.close()
            worker = cls(process, start.folder)
            await worker._begin(ours, timeout_s=timeout_s)
            if channels:
                worker.listener = _received_listener(channels[0])
        return worker

    async def _begin(self, connection: socket.socket, *, timeout_s: float) -> None:
        """Waits until the fork server is ready; closes it when it is not. Raises: SandboxError with the reason."""
        try:
            self._reader, self._writer = await asyncio.open_connection(sock=connection)
            async with asyncio.timeout(timeout_s):
                answer = await self._answer()
        except (WorkerLost, TimeoutError) as problem:
            complaint = await self._complaint()
            await self.close()
            raise _not_started(complaint or str(problem) or "no answer") from None
        except BaseException:
            await self.close()
            raise
        if "broken" in answer:
            await self.close()
            raise _not_started(str(answer["broken"]))

    async def call(
        self,
        message: Mapping[str, Any],
        text: str,
        *,
        wall_s: float,
        files: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> dict[str, Any]:
        """Sends a message and returns the answer. text: of the program, which with its files and its input the fork
        server does not read. Raises: WorkerLost; the caller then closes the worker."""
        job = _content(text, files or {})
        program_input = (stdin or "").encode(errors="replace")
        sizes = {"content_bytes": len(job), "input_bytes": None if stdin is None else len(program_input)}
        header = json.dumps({**message, **sizes}).encode()
        self.jobs += 1
        try:
            self._writer.write(b"".join((len(header).to_bytes(4, "big"), header, job, program_input)))
            async with asyncio.timeout(wall_s + _GRACE_S):
                await self._writer.drain()
                answer = await self._answer()
        except (OSError, TimeoutError) as problem:
            raise WorkerLost(f"{type(problem).__name__}: {problem}") from problem
        if message["kind"] == "job":
            self._groups.clear()
        return answer

    async def close(self) -> None:
        """Ends the fork server with everything that it runs. Idempotent."""
        if self.listener is not None:
            self.listener.close()
        if hasattr(self, "_writer"):
            self._writer.close()  # the fork server then ends its jobs and itself
        await self.process.has_ended_within(_CLOSE_S)
        await self.process.stop()
        if self.process.code != 0:
            for group in self._groups:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        self._groups.clear()
        await remove_folder(self._folder)

    async def _answer(self) -> dict[str, Any]:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                if size > _MAX_ANSWER_BYTES:
                    raise WorkerLost(f"an answer of {size} bytes")
                answer = json.loads(await self._reader.readexactly(size))
                if not isinstance(answer, dict):
                    raise WorkerLost("an answer that is no object")
                if set(answer) == {"group"}:
                    self._groups.add(int(answer["group"]))
                    continue
                sizes = answer.pop("output_bytes", ())
                if sum(sizes) > _MAX_ANSWER_BYTES:
                    raise WorkerLost(f"outputs of {sum(sizes)} bytes")
                for name, size in zip(("stdout", "stderr"), sizes, strict=False):
                    answer[name] = (await self._reader.readexactly(size)).decode(errors="replace")
                return answer
        except (asyncio.IncompleteReadError, ValueError) as problem:
            raise WorkerLost("the fork server died") from problem

    async def _complaint(self) -> str:
        """Returns the last line that the process wrote to standard error; empty when it writes none in a second."""
        assert self.process.errors is not None  # noqa: S101 (a pipe)
        lines: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                lines = (await self.process.errors.read(4096)).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _content(text: str, files: Mapping[str, str]) -> bytes:
    """Returns texts as one, after a line with their sizes."""
    texts = [text, *(part for file in files.items() for part in file)]
    parts = [part.encode(errors="replace") for part in texts]
    return b"".join([" ".join(str(len(part)) for part in parts).encode(), b"\n", *parts])


async def remove_folder(folder: Path) -> None:
    """Removes a folder of workers that have ended, with what their jobs left; reports what cannot be removed."""
    if not await asyncio.to_thread(folders.remove, str(folder)):
        log.warning("sandbox_folder_left", folder=str(folder))


async def _started_process(start: Start, theirs: Sequence[socket.socket]) -> ChildProcess:
    """Starts the process with its ends of the connections, the numbers of which are its last arguments."""
    descriptors = [end.fileno() for end in theirs]
    try:
        return await ChildProcess.spawn(
            *(*_as_user(start.user), *start.command, *map(str, descriptors)),
            environment=_ENVIRONMENT,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=descriptors,
            cwd="/",
        )
    except OSError as problem:
        raise _not_started(str(problem)) from problem


_CHANGE_USER = (
    "import os, sys; user = int(sys.argv[1]); os.setgroups([]); os.setgid(user); os.setuid(user); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def _as_user(user: int | None) -> list[str]:
    """Returns the begin of a command that runs the rest as another user: uvloop's processes have no option for it."""
    return [] if user is None else [sys.executable, "-I", "-S", "-c", _CHANGE_USER, str(user)]


def _received_listener(channel: socket.socket) -> socket.socket:
    """Returns the listening socket that a fork server sent before it was ready."""
    channel.setblocking(False)
    _, descriptors, _, _ = socket.recv_fds(channel, 16, 1)
    return socket.socket(fileno=descriptors[0])


def _not_started(cause: str) -> SandboxError:
    return SandboxError(
        f"cannot start a worker of the sandbox: {cause}; run `astraflow doctor` to see what this machine can isolate",
        code="sandbox.worker_not_started",
    )
