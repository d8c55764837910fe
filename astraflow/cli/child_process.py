"""One child process: start with a log file, read its output, terminate it with its descendants."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.service import FOLLOW_PARENT

READY = "ready "
"""Prefix of the line `ready ADDRESS`, which a service prints on its standard output once it serves."""
PROGRESS = "progress "
"""Prefix of lines with the activity of a child before it is ready, for display."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program to start and its expected behaviour."""

    name: str
    """Name in messages and of the log file, such as `dataflow` or `node-1`."""
    argv: tuple[str, ...]
    log: Path
    """File to which both outputs are appended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the environment of the parent."""
    announces: bool = True
    """True if the program prints `ready ADDRESS`."""
    may_exit: bool = False
    """True if an exit with code 0 is intended (a drained node) and not a failure."""
    is_essential: bool = True
    """True if the other programs must stop when this program cannot be kept running."""
    grace_s: float | None = None
    """Seconds from the stop request to the kill; None for the default."""
    stop_wave: int = 0
    """Shutdown order: programs of a lower wave exit before programs of a higher wave are asked to stop."""


class Child:
    """Running program. It has its own session, so that Ctrl-C in the terminal reaches only the parent, and holds one
    end of a pipe, so that it stops when the parent exits for any reason."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.Task[None]) -> None:
        self._process = process
        self._reader = reader

    @classmethod
    async def start(cls, program: Program, on_line: Callable[[str], None]) -> Self:
        """Starts a program; `on_line` receives each line of its output. Raises: InvalidInput if it cannot start."""
        program.log.parent.mkdir(parents=True, exist_ok=True)
        log = program.log.open("ab", buffering=0)
        try:
            process = await asyncio.create_subprocess_exec(
                *program.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **program.environment, FOLLOW_PARENT: "1"},
                start_new_session=True,
            )
        except OSError as problem:
            log.close()
            raise InvalidInput(
                f"cannot start {program.name!r}: {program.argv[0]!r}: {problem.strerror}; check the installation",
                code="process.not_started",
            ) from problem
        return cls(process, asyncio.create_task(_read_output(process, log, on_line)))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Waits for the exit and the remaining output; returns the exit code, negative for a signal."""
        code = await self._process.wait()
        # Its own children may still hold the output open; one second is enough for its last lines.
        await asyncio.wait({self._reader}, timeout=1.0)
        return code

    async def terminate(self, grace_s: float) -> None:
        """Asks the program to stop; kills it and its descendants after `grace_s` seconds. Returns after its exit."""
        try:
            if self._process.returncode is None:
                self._process.terminate()
                await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            pass  # it is killed below
        finally:
            self._kill()
            await self._process.wait()
            self._reader.cancel()

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it and its descendants have exited


async def _read_output(process: asyncio.subprocess.Process, log: BinaryIO, on_line: Callable[[str], None]) -> None:
    assert process.stdout is not None  # noqa: S101 (it is started with a pipe)
    with log:
        while chunk := await _read_line(process.stdout):
            with contextlib.suppress(OSError):  # a full disk loses the line, but must not block the output of the child
                log.write(chunk)
            on_line(chunk.decode(errors="replace").rstrip())


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Returns the next line, or a full buffer of an overlong line."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as rest:
        return rest.partial
    except asyncio.LimitOverrunError as overrun:
        return await stream.read(overrun.consumed)
