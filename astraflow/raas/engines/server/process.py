"""Process of an engine server, with its whole tree of child processes."""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from astraflow.contract.errors import Unavailable
from astraflow.raas.engines.server import guardian
from astraflow.raas.engines.server.guardian import mapped_shared_memory, remove
from astraflow.runtime.logs import get_logger

log = get_logger()

LOG_TAIL_LINES = 20
STOP_S = 10.0
"""Seconds in which the guardian ends its tree, and in which killed processes must be gone."""
_MAX_LINE_BYTES = 2**20
_POLL_S = 0.01
_LAST_LINES_S = 0.5
"""Longest wait for the last lines of an ended server, whose child processes may hold its output open. Seconds."""

_RECORD_EVERY_S = 5.0
"""Interval in which the shared memory of an unchanged tree is recorded. Seconds."""


class ServerProcess:
    """Running server, with a guardian above it (`guardian.py`), which ends the whole tree when the server or this
    process ends. The tree is recorded while it runs: it has to be ended from here if the guardian was killed."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: int,
        log_file: Path,
        *,
        temporary_folder: str,
        secret: str = "",
    ) -> None:
        """output: file descriptor of the read end of the server's output. temporary_folder: removed with the server.
        secret: as `start`."""
        self._process = process
        self._temporary_folder = temporary_folder
        self._output = output
        self._log_file = log_file
        self._secret = secret.encode()
        self._reader = asyncio.create_task(self._copy_output())
        self._tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._descendants: dict[int, psutil.Process] = {}
        self._shared_memory: set[str] = set()
        self._recorded: list[psutil.Process] = []
        """Processes when their shared memory was recorded last."""
        self._recorded_at = 0.0

    @classmethod
    async def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], log_file: Path, *, secret: str = ""
    ) -> Self:
        """Starts the server; its output without `secret` goes to `log_file`. environment: all variables of the process,
        whose TMPDIR becomes a new folder in the given one.

        Raises: Unavailable when the program does not exist or no process can be started.
        """
        log_file.parent.mkdir(parents=True, exist_ok=True)
        # With asyncio's own pipe, `Process.wait` returns only when all child processes have closed it as well.
        output, server_output = os.pipe()
        temporary_folder = ""
        try:
            if shutil.which(argv[0], path=environment.get("PATH")) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            # A short name: servers make sockets there, whose paths have at most 107 bytes.
            temporary_folder = tempfile.mkdtemp(prefix="engine-", dir=environment.get("TMPDIR"))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), temporary_folder),
                *argv,
                env={**environment, "TMPDIR": temporary_folder},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=server_output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            os.close(output)
            shutil.rmtree(temporary_folder, ignore_errors=True)
            raise Unavailable(
                f"cannot start the engine server {argv[0]!r}: {problem.strerror}; install it with "
                "`astraflow engines install`",
                code="engine.not_started",
            ) from problem
        finally:
            os.close(server_output)
        return cls(process, output, log_file, temporary_folder=temporary_folder, secret=secret)

    @property
    def pid(self) -> int:
        """Process id of the guardian. The server is the first of its descendants."""
        return self._process.pid

    @property
    def log_tail(self) -> tuple[str, ...]:
        """Last lines of the output."""
        return tuple(self._tail)

    async def wait(self) -> int:
        """Waits for the exit of the server; returns its exit code, negative for a signal."""
        code = await self._process.wait()
        await asyncio.wait({self._reader}, timeout=_LAST_LINES_S)  # child processes may hold the output open
        return code

    def refresh_descendants(self) -> list[psutil.Process]:
        """Records and returns the processes of the tree that run now, without the guardian, in the order in which they
        were first seen: the server is the first while it runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                self._descendants[child.pid] = child
        running = [child for child in self._descendants.values() if _is_alive(child)]
        self._descendants = {child.pid: child for child in running}
        if running != self._recorded or time.monotonic() > self._recorded_at + _RECORD_EVERY_S:
            self._record_shared_memory()
            self._recorded, self._recorded_at = running, time.monotonic()
        return running

    def _record_shared_memory(self) -> None:
        """Records the shared memory of the tree. The list of a process with torch has 1,700 mappings: 5 ms."""
        for pid in (self.pid, *self._descendants):
            self._shared_memory |= mapped_shared_memory(pid)

    async def stop(self) -> None:
        """Kills the server and all its child processes; returns when none is left."""
        descendants = self.refresh_descendants()
        self._record_shared_memory()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_S)
        descendants = [*descendants, *self.refresh_descendants()]
        for process in descendants:  # none, unless the guardian was killed or hangs
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        left = await _wait_ended(descendants, timeout_s=STOP_S)
        if left:
            log.error("engine_processes_left", pids=[process.pid for process in left])
        remove(self._shared_memory)  # a killed server does not remove it
        shutil.rmtree(self._temporary_folder, ignore_errors=True)  # as a killed guardian would have
        self._reader.cancel()
        await asyncio.wait({self._reader})

    async def _copy_output(self) -> None:
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(self._output, "rb", buffering=0)
        )
        try:
            private = os.open(self._log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(private, "ab", buffering=0) as file:
                while True:
                    try:
                        line = await lines.readline()
                    except ValueError:  # a line above the limit is dropped
                        continue
                    if not line:
                        return
                    if self._secret:  # SGLang logs its arguments, and errors repeat the last lines
                        line = line.replace(self._secret, b"(hidden)")
                    self._tail.append(line.decode(errors="replace").rstrip())
                    with contextlib.suppress(OSError):  # a full disk loses the line, but must not block the server
                        file.write(line)
        finally:
            transport.close()


def _is_alive(process: psutil.Process) -> bool:
    """Returns whether a process runs. A zombie does not: its parent, or the first process, has yet to collect it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _wait_ended(processes: Sequence[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Waits until none runs, at most `timeout_s` seconds; returns the others."""
    deadline_at = time.monotonic() + timeout_s
    while left := [process for process in processes if _is_alive(process)]:
        if time.monotonic() > deadline_at:
            break
        await asyncio.sleep(_POLL_S)
    return left
