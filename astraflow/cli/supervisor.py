"""Keeps the processes of a run alive: starts them, starts again what dies, and leaves nothing behind."""

import asyncio
import shutil
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from astraflow.cli.child import PROGRESS, READY, Child, Program
from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.service import ERROR_PREFIX, EXIT_REFUSED, EXIT_SIGNALLED

T = TypeVar("T")

_NO_ROOM_BYTES = 64 * 1024


class RoleFailed(AstraFlowError):
    """A process cannot be kept running; the message holds the reason it gave, or the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something a supervised process did."""

    program: str
    kind: str
    """`started`, `ready`, `progress`, `died`, `restarting`, `left`, `given_up`."""
    message: str = ""
    pid: int = 0


OnHappening = Callable[[Happening], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the supervisor bears with a process."""

    first_delay_s: float = 0.2
    """Before it is started again; doubles with each death in a row."""
    max_delay_s: float = 5.0
    settled_s: float = 10.0
    """After a life of this length the next delay is the first again."""
    deaths: int = 5
    within_s: float = 20.0
    """That many deaths in that time without ever having been ready: given up."""
    refusals: int = 3
    """One that was ready once and now refuses its input that often in a row is given up too."""
    ready_within_s: float = 60.0
    grace_s: float = 2.0
    """Between asking to stop and killing, for each of the two waves."""


class Supervisor:
    """An `async with` that owns child processes; when one of them cannot be kept running, the block is cancelled and
    `RoleFailed` rises (inside an exception group, as from any task group).

    started ──ready──► running ──died──► waiting ──► started        (any number of times, with growing delays)
       │ died 5 times in 20 s, or refused its input, without ever having been ready
       └──────────────► RoleFailed            (also for the third refusal in a row later on)
    """

    def __init__(
        self, on_happening: OnHappening, *, patience: Patience | None = None, clock: Clock | None = None
    ) -> None:
        self._on_happening = on_happening
        self._patience = patience or Patience()
        self._clock = clock or SystemClock()
        self._keepers: list[_Keeper] = []
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if problem is None:
                await self._stop()
        finally:
            await self._tasks.__aexit__(kind, problem, trace)

    @property
    def restarts(self) -> int:
        """Times that any process was started again."""
        return sum(keeper.restarts for keeper in self._keepers)

    def start(self, program: Program) -> None:
        """Start `program` and keep it running."""
        keeper = _Keeper(program, self._on_happening, self._patience, self._clock)
        self._keepers.append(keeper)
        self._tasks.create_task(keeper.run())

    async def ready(self, name: str) -> str:
        """Wait until the program called `name` has announced itself; returns what it said after `ready`.

        Raises: RoleFailed when it takes too long. (When it dies instead, the whole block fails.)
        """
        keeper = next(keeper for keeper in self._keepers if keeper.program.name == name)
        return await keeper.announcement()

    def works(self, name: str) -> None:
        """The program called `name`, which does not announce itself, was seen at work: it counts as ready."""
        for keeper in self._keepers:
            if keeper.program.name == name:
                keeper.has_been_ready = True

    async def left(self, name: str) -> None:
        """Wait until the program called `name`, which may leave by itself, has done so."""
        await next(keeper for keeper in self._keepers if keeper.program.name == name).stopped()

    async def _stop(self) -> None:
        for wave in sorted({keeper.program.stop_wave for keeper in self._keepers}):
            await asyncio.gather(*(keeper.stop() for keeper in self._keepers if keeper.program.stop_wave == wave))


class _Keeper:
    """Keeps one program running until told to stop."""

    def __init__(self, program: Program, on_happening: OnHappening, patience: Patience, clock: Clock) -> None:
        self.program = program
        self.restarts = 0
        self._on_happening = on_happening
        self._patience = patience
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=patience.deaths)
        self.has_been_ready = False
        self._refusals = 0
        self._log_start = 0
        """Where in the log the present life of the program begins."""
        self._announced = asyncio.Event()
        self._where = ""
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Start, wait, judge, start again. Raises: RoleFailed for an essential program that has to be given up."""
        try:
            await self._keep()
        except AstraFlowError as problem:
            self._say("given_up", message=str(problem))
            if self.program.is_essential:
                raise
        finally:
            self._stopped.set()

    async def announcement(self) -> str:
        """What the program said after `ready`. Raises: RoleFailed when it does not say it in time, or ever."""
        waits = [asyncio.create_task(event.wait()) for event in (self._announced, self._stopped)]
        try:
            await asyncio.wait(waits, timeout=self._patience.ready_within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._announced.is_set():
            return self._where
        if self._stopped.is_set():
            raise RoleFailed(f"{self.program.name} ended before it was ready")
        within = f"within {self._patience.ready_within_s:g} s"
        raise RoleFailed(f"{self.program.name} did not get ready {within}; {self._last_lines()}")

    async def stopped(self) -> None:
        """Wait until the program has ended for good."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Ask the program to end, kill it if it does not, and return once it is gone."""
        self._stopping.set()
        await self.stopped()

    async def _keep(self) -> None:
        delay_s = self._patience.first_delay_s
        while True:
            began = self._clock.now()
            code = await self._live()
            if code is None or self._has_left(code):
                return
            lived_s = self._clock.now() - began
            if lived_s >= self._patience.settled_s:
                delay_s = self._patience.first_delay_s
            self._judge(code)
            self._say("restarting")
            await self._before_stop(self._clock.sleep(delay_s))
            if self._stopping.is_set():
                return
            delay_s = min(2 * delay_s, self._patience.max_delay_s)
            self.restarts += 1

    async def _live(self) -> int | None:
        """One life of the program: its exit code, or None when it was told to stop."""
        self._log_start = self.program.log.stat().st_size if self.program.log.exists() else 0
        child = await Child.start(self.program, self._on_line)
        try:
            self._say("started", pid=child.pid)
            code = await self._before_stop(child.wait())
            if code is not None:
                self._say("left" if self._has_left(code) else "died", message=_ending(code))
            return code
        finally:
            grace_s = self.program.grace_s
            await child.end(self._patience.grace_s if grace_s is None else grace_s)

    def _has_left(self, code: int) -> bool:
        """Whether the program ended on purpose: its work is complete, or a person terminated it (SIGTERM)."""
        return self.program.may_leave and code in (0, EXIT_SIGNALLED + signal.SIGTERM)

    async def _before_stop(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` returns; None when the order to stop comes first."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if not self._stopping.is_set() else None
        finally:
            stopping.cancel()
            working.cancel()

    def _judge(self, code: int) -> None:
        name, reason = self.program.name, self._last_word()
        self._refusals = self._refusals + 1 if code == EXIT_REFUSED else 0
        if self._refusals >= (self._patience.refusals if self.has_been_ready else 1):
            raise RoleFailed(f"{name} cannot run: {reason or self._last_lines()}")
        if self.has_been_ready:
            return
        self._deaths.append(self._clock.now())
        if len(self._deaths) == self._patience.deaths and self._deaths[-1] - self._deaths[0] <= self._patience.within_s:
            raise RoleFailed(
                f"{name} ended {self._patience.deaths} times within {self._patience.within_s:g} s without getting "
                f"ready; given up. {f'Its last word: {reason}' if reason else self._last_lines()}"
            )

    def _last_word(self) -> str:
        """What the process printed as its error before it ended; empty when it said none."""
        _, found, message = self._log_tail().rpartition(f"\n{ERROR_PREFIX}")
        return message.strip() if found else ""

    def _last_lines(self) -> str:
        lines = self._log_tail().strip().splitlines()[-12:]
        if not lines and shutil.disk_usage(self.program.log.parent).free < _NO_ROOM_BYTES:
            return f"the disk is full, even for its log: free some space around {self.program.log.parent}"
        return "\n".join([f"the last lines of {self.program.log}:", *(f"  {line}" for line in lines)])

    def _log_tail(self) -> str:
        """The end of what the present life of the program wrote, beginning with a line break."""
        with self.program.log.open("rb") as file:
            file.seek(max(self._log_start, self.program.log.stat().st_size - 64 * 1024))
            return "\n" + file.read().decode(errors="replace")

    def _on_line(self, line: str) -> None:
        if line.startswith(READY):
            self.has_been_ready = True
            self._where = line.removeprefix(READY)
            self._announced.set()
            self._say("ready", message=self._where)
        elif line.startswith(PROGRESS):
            self._say("progress", message=line.removeprefix(PROGRESS))

    def _say(self, kind: str, *, message: str = "", pid: int = 0) -> None:
        self._on_happening(Happening(program=self.program.name, kind=kind, message=message, pid=pid))


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
