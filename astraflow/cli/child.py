"""One child process: started with a log, listened to, and ended without a trace."""

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
"""A child that serves something says `ready WHERE` on its standard output once it does."""
PROGRESS = "progress "
"""What a child is busy with before it is ready, for the person who waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start, and what to expect of it."""

    name: str
    """`dataflow`, `node-1`: how people and the log folder know it."""
    argv: tuple[str, ...]
    log: Path
    """Both its outputs are appended here."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the parent's."""
    announces: bool = True
    """Whether it says `ready WHERE`."""
    may_leave: bool = False
    """Ending by itself with code 0 is its own decision (a drained node), not an accident."""
    is_essential: bool = True
    """Whether the others are of no use when it cannot be kept running."""
    grace_s: float | None = None
    """From asking it to stop until it is killed; None for what is usual."""
    stop_wave: int = 0
    """When all is stopped, lower waves end before higher ones are asked to."""


class Child:
    """A running program. It leads a session of its own, so that Ctrl-C in the terminal reaches only its parent,
    and it holds one end of a pipe, so that it stops when the parent is gone, however that happened."""

    def __init__(self, process: asyncio.subprocess.Process, listening: asyncio.Task[None]) -> None:
        self._process = process
        self._listening = listening

    @classmethod
    async def start(cls, program: Program, on_line: Callable[[str], None]) -> Self:
        """Start it; `on_line` hears each line of its standard output. Raises: InvalidInput when that cannot be done."""
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
            raise InvalidInput(f"{program.name} cannot be started ({program.argv[0]}): {problem.strerror}") from problem
        return cls(process, asyncio.create_task(_listen(process, log, on_line)))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Its exit code once it has ended and all it said was heard; negative for a signal."""
        code = await self._process.wait()
        # What it started itself may still hold the output open: one second is enough to hear what it said last.
        await asyncio.wait({self._listening}, timeout=1.0)
        return code

    async def end(self, grace_s: float) -> None:
        """Ask it to stop; kill it, and whatever it started, after `grace_s`. Returns once it is gone."""
        try:
            if self._process.returncode is None:
                self._process.terminate()
                await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            pass  # the kill below is the answer
        finally:
            self._kill()
            await self._process.wait()
            self._listening.cancel()

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # gone, and nothing it started is left


async def _listen(process: asyncio.subprocess.Process, log: BinaryIO, on_line: Callable[[str], None]) -> None:
    assert process.stdout is not None  # noqa: S101 (it was started with a pipe)
    with log:
        while chunk := await _line(process.stdout):
            with contextlib.suppress(OSError):  # a full disk costs the line, and must not block the child's output
                log.write(chunk)
            on_line(chunk.decode(errors="replace").rstrip())


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or a full buffer of a line that does not end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as rest:
        return rest.partial
    except asyncio.LimitOverrunError as overrun:
        return await stream.read(overrun.consumed)
