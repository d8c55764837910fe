"""Process of an engine server, with its whole tree of child processes."""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from astraflow.contract.errors import Unavailable
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared_memory import SHARED_FOLDER

log = get_logger()

LOG_TAIL_LINES = 20
TERMINATE_S = 10.0
"""Seconds from the stop request to the kill."""
_MAX_LINE_BYTES = 2**20
_POLL_S = 0.01
_LAST_LINES_S = 0.5
"""Longest wait for the last lines of an ended server, whose child processes may hold its output open. Seconds."""
_PR_SET_PDEATHSIG = 1


class ServerProcess:
    """Running server. It has its own session, and the kernel kills it when this process ends.

    vLLM's workers outlive their core by seconds, and both servers start processes that are not in their process group,
    so the tree is killed by parentage; it is recorded while the server runs, because orphans lose their parent.
    """

    def __init__(self, process: asyncio.subprocess.Process, output: int, log_file: Path) -> None:
        """output: file descriptor of the read end of the server's output."""
        self._process = process
        self._output = output
        self._log_file = log_file
        self._reader = asyncio.create_task(self._copy_output())
        self._tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._descendants: dict[int, psutil.Process] = {}
        self._shared_memory: set[str] = set()

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], log_file: Path) -> Self:
        """Starts the server; its output goes to `log_file`. environment: all variables of the process.

        Raises: Unavailable when the program cannot be started.
        """
        log_file.parent.mkdir(parents=True, exist_ok=True)
        # With asyncio's own pipe, `Process.wait` returns only when all child processes have closed it as well.
        output, server_output = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=server_output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as problem:
            os.close(output)
            raise Unavailable(
                f"cannot start the engine server {argv[0]!r}: {problem.strerror}; install it with "
                "`astraflow engines install`",
                code="engine.not_started",
            ) from problem
        finally:
            os.close(server_output)
        return cls(process, output, log_file)

    @property
    def pid(self) -> int:
        """Process id of the server."""
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
        """Records and returns the child processes that run now, at any depth."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                self._descendants[child.pid] = child
        running = [child for child in self._descendants.values() if _is_alive(child)]
        self._descendants = {child.pid: child for child in running}
        for pid in (self.pid, *self._descendants):
            self._shared_memory |= _mapped_shared_memory(pid)
        return running

    async def stop(self, *, terminate_s: float = TERMINATE_S) -> None:
        """Ends the server and all its child processes: SIGTERM, then SIGKILL after `terminate_s` seconds; 0 kills at
        once. Returns when none is left."""
        descendants = self.refresh_descendants()
        if terminate_s > 0 and self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), terminate_s)
        descendants = [*descendants, *self.refresh_descendants()]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for child in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        await self._process.wait()
        left = await _wait_ended(descendants, timeout_s=TERMINATE_S)
        if left:
            log.error("engine_processes_left", pids=[child.pid for child in left])
        _remove(self._shared_memory)  # a killed server does not remove it
        self._reader.cancel()
        await asyncio.wait({self._reader})

    async def _copy_output(self) -> None:
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(self._output, "rb", buffering=0)
        )
        try:
            private = os.open(self._log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)  # SGLang logs its key
            with os.fdopen(private, "ab", buffering=0) as file:
                while True:
                    try:
                        line = await lines.readline()
                    except ValueError:  # a line above the limit is dropped
                        continue
                    if not line:
                        return
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


def _mapped_shared_memory(pid: int) -> set[str]:
    """Returns the files in shared memory that a process maps, without those of AstraFlow."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    prefix = f"{SHARED_FOLDER}/"
    paths = {line[line.index(prefix) :] for line in lines if prefix in line}
    return {path for path in paths if not path.startswith(f"{prefix}astraflow") and not path.endswith(" (deleted)")}


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            Path(path).unlink()


_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """Makes the kernel kill the new process when its parent ends. Runs between fork and exec: a plain system call."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
