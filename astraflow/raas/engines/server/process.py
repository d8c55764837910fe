"""Process of an engine server, with its whole tree of child processes."""

import asyncio
import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from astraflow.contract.errors import Unavailable
from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes import supervised
from astraflow.runtime.processes.child import LoggedProcess
from astraflow.runtime.processes.supervised import mapped_shared_memory, remove

log = get_logger()

STOP_S = 10.0
"""Seconds in which the process supervisor ends its tree, and in which killed processes must be gone."""
_POLL_S = 0.01
_RECORD_EVERY_S = 5.0
"""Interval in which the shared memory of an unchanged tree is recorded. Seconds."""


class ServerProcess(LoggedProcess):
    """Running server, with a process supervisor above it (`supervised.py`), which ends the whole tree when the server
    or this process ends. The tree is recorded while it runs: it has to be ended from here if the supervisor was
    killed. `pid` is that of the supervisor; the server is the first of its descendants."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: Any) -> None:
        super().__init__(transport, protocol)
        self._temporary_folder = ""
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
        temporary_folder = ""
        try:
            if shutil.which(argv[0], path=environment.get("PATH")) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            # A short name: servers make sockets there, whose paths have at most 107 bytes.
            temporary_folder = tempfile.mkdtemp(prefix="engine-", dir=environment.get("TMPDIR"))
            server = await cls.spawn_logged(
                *(sys.executable, "-I", "-S", supervised.__file__, str(os.getpid()), temporary_folder, *argv),
                environment={**environment, "TMPDIR": temporary_folder},
                log_file=log_file,
                secret=secret,  # SGLang logs its arguments, and errors repeat the last lines
            )
        except OSError as problem:
            shutil.rmtree(temporary_folder, ignore_errors=True)
            raise Unavailable(
                f"cannot start the engine server {argv[0]!r}: {problem.strerror}; install it with "
                "`astraflow engines install`",
                code="engine.not_started",
            ) from problem
        server._temporary_folder = temporary_folder
        return server

    def refresh_descendants(self) -> list[psutil.Process]:
        """Records and returns the processes of the tree that run now, without the supervisor, in the order in which
        they were first seen: the server is the first while it runs."""
        with suppress(psutil.NoSuchProcess):
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

    async def stop(self, grace_s: float = STOP_S) -> None:
        """Kills the server and all its child processes; returns when none is left."""
        descendants = self.refresh_descendants()
        self._record_shared_memory()
        await self.ask_to_end(grace_s)
        descendants = [*descendants, *self.refresh_descendants()]
        for process in descendants:  # none, unless the supervisor was killed or hangs
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await super().stop()
        left = await _wait_ended(descendants, timeout_s=STOP_S)
        if left:
            log.error("engine_processes_left", pids=[process.pid for process in left])
        remove(self._shared_memory)  # a killed server does not remove it
        shutil.rmtree(self._temporary_folder, ignore_errors=True)  # as a killed supervisor would have


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
