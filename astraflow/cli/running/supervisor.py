"""Supervisor of the processes of a run: starts them, restarts failed ones, and terminates all at the end."""

import asyncio
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.processes.child import LoggedProcess
from astraflow.runtime.service import ERROR_PREFIX, EXIT_REFUSED, EXIT_SIGNALLED, FOLLOW_PARENT, read_error

T = TypeVar("T")

READY = "ready "
"""Prefix of the line `ready ADDRESS`, which a service prints on its standard output once it serves."""
PROGRESS = "progress "
"""Prefix of lines with the activity of a child before it is ready, for display."""

_DISK_FULL_BYTES = 64 * 1024


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


async def start_program(program: Program, on_line: Callable[[str], None]) -> LoggedProcess:
    """Starts a program, which ends when this process ends for any reason: it holds one end of a pipe. `on_line`
    receives each line of its output. Raises: InvalidInput if it cannot start."""
    try:
        return await LoggedProcess.spawn_logged(
            *program.argv,
            environment={**os.environ, **program.environment, FOLLOW_PARENT: "1"},
            log_file=program.log,
            stdin=asyncio.subprocess.PIPE,
            on_line=on_line,
            has_own_errors=True,
        )
    except OSError as problem:
        raise InvalidInput(
            f"cannot start {program.name!r}: {program.argv[0]!r}: {problem.strerror}; check the installation",
            code="process.not_started",
        ) from problem


class RoleFailed(AstraFlowError):
    """A process cannot be kept running; the message holds its reported error, or the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvent:
    """Event of a supervised process."""

    program: str
    kind: str
    """`started`, `ready`, `progress`, `failed`, `restarting`, `exited`, `abandoned`."""
    message: str = ""
    pid: int = 0


OnProcessEvent = Callable[[ProcessEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """Limits on the restarts of a process."""

    first_delay_s: float = 0.2
    """Delay before a restart; doubles with each consecutive failure."""
    max_delay_s: float = 5.0
    stable_after_s: float = 10.0
    """Uptime after which the delay is reset."""
    max_deaths: int = 5
    window_s: float = 20.0
    """Time in which `max_deaths` failures of a process that was never ready end the restarts."""
    max_refusals: int = 3
    """Consecutive refusals of its input that end the restarts of a process that was ready before."""
    ready_within_s: float = 60.0
    grace_s: float = 2.0
    """Seconds between stop request and kill, for each of the two waves."""


class Supervisor:
    """Async context manager that owns child processes. When one of them cannot be kept running, it cancels the block
    and raises `RoleFailed` (in an exception group, as any task group).

    started ──ready──► running ──failed──► waiting ──► started        (any number of times, with growing delays)
       │ failed 5 times in 20 s, or refused its input, before it was ever ready
       └──────────────► RoleFailed            (also for the third consecutive refusal later)
    """

    def __init__(
        self, on_event: OnProcessEvent, *, restart_limits: RestartLimits | None = None, clock: Clock | None = None
    ) -> None:
        self._on_event = on_event
        self._restart_limits = restart_limits or RestartLimits()
        self._clock = clock or SystemClock()
        self._processes: list[_SupervisedProcess] = []
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
        return sum(process.restarts for process in self._processes)

    def start(self, program: Program) -> None:
        """Starts `program` and keeps it running."""
        process = _SupervisedProcess(program, self._on_event, self._restart_limits, self._clock)
        self._processes.append(process)
        self._tasks.create_task(process.run())

    async def ready(self, name: str) -> str:
        """Waits until the program `name` is ready; returns the address it announced.

        Raises: RoleFailed when it takes too long. (If it fails instead, the whole block fails.)
        """
        process = next(process for process in self._processes if process.program.name == name)
        return await process.announcement()

    def mark_ready(self, name: str) -> None:
        """Marks a program that does not announce itself as ready, because a report shows it working."""
        for process in self._processes:
            if process.program.name == name and not process.has_been_ready:
                process.has_been_ready = True
                self._on_event(ProcessEvent(program=name, kind="ready"))

    async def wait_until_exited(self, name: str) -> None:
        """Waits until the program `name`, which may exit by itself, has exited."""
        await next(process for process in self._processes if process.program.name == name).stopped()

    async def _stop(self) -> None:
        for wave in sorted({process.program.stop_wave for process in self._processes}):
            await asyncio.gather(*(process.stop() for process in self._processes if process.program.stop_wave == wave))


class _SupervisedProcess:
    """Keeps one program running until it is stopped."""

    def __init__(self, program: Program, on_event: OnProcessEvent, restart_limits: RestartLimits, clock: Clock) -> None:
        self.program = program
        self.restarts = 0
        self._on_event = on_event
        self._restart_limits = restart_limits
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=restart_limits.max_deaths)
        self.has_been_ready = False
        self._refusals = 0
        self._log_start = 0
        """Offset in the log where the output of the current process starts."""
        self._announced = asyncio.Event()
        self._announced_address = ""
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Runs and restarts the program. Raises: RoleFailed for an essential program that cannot be kept running."""
        try:
            await self._keep_running()
        except AstraFlowError as problem:
            self._emit("abandoned", message=str(problem))
            if self.program.is_essential:
                raise
        finally:
            self._stopped.set()

    async def announcement(self) -> str:
        """Returns the announced address. Raises: RoleFailed when the program is not ready in time or exits before."""
        waits = [asyncio.create_task(event.wait()) for event in (self._announced, self._stopped)]
        try:
            await asyncio.wait(waits, timeout=self._restart_limits.ready_within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._announced.is_set():
            return self._announced_address
        if self._stopped.is_set():
            raise RoleFailed(
                f"cannot start {self.program.name!r}: it exited before it was ready; read its log {self.program.log}",
                code="process.not_ready",
            )
        within = f"within {self._restart_limits.ready_within_s:g} s"
        raise RoleFailed(
            f"cannot start {self.program.name!r}: it was not ready {within}; {self._last_lines()}",
            code="process.not_ready",
        )

    async def stopped(self) -> None:
        """Waits until the program has exited and is not restarted."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Stops the program, kills it after the grace period, and returns once it has exited."""
        self._stopping.set()
        await self.stopped()

    async def _keep_running(self) -> None:
        delay_s = self._restart_limits.first_delay_s
        while True:
            began_at = self._clock.now()
            code = await self._run_once()
            if code is None or self._has_exited_on_purpose(code):
                return
            uptime_s = self._clock.now() - began_at
            if uptime_s >= self._restart_limits.stable_after_s:
                delay_s = self._restart_limits.first_delay_s
            self._check_restart_limits(code)
            self._emit("restarting")
            await self._unless_stopped(self._clock.sleep(delay_s))
            if self._stopping.is_set():
                return
            delay_s = min(2 * delay_s, self._restart_limits.max_delay_s)
            self.restarts += 1

    async def _run_once(self) -> int | None:
        """Runs the program once; returns its exit code, or None when it was stopped."""
        self._log_start = self.program.log.stat().st_size if self.program.log.exists() else 0
        child = await start_program(self.program, self._on_line)
        try:
            self._emit("started", pid=child.pid)
            code = await self._unless_stopped(child.wait())
            if code is not None:
                has_failed = not self._has_exited_on_purpose(code)
                reason = self._reported_error() if has_failed else ""
                message = f"{_exit_message(code)} ({reason})" if reason else _exit_message(code)
                self._emit("failed" if has_failed else "exited", message=message)
            return code
        finally:
            grace_s = self.program.grace_s
            await child.stop(self._restart_limits.grace_s if grace_s is None else grace_s)

    def _has_exited_on_purpose(self, code: int) -> bool:
        """Returns True if the exit was intended: the work is complete, or a user terminated it (SIGTERM)."""
        return self.program.may_exit and code in (0, EXIT_SIGNALLED + signal.SIGTERM)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Returns the result of `work`; None when the program is stopped first."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if not self._stopping.is_set() else None
        finally:
            stopping.cancel()
            working.cancel()

    def _check_restart_limits(self, code: int) -> None:
        name, reason = self.program.name, self._reported_error()
        self._refusals = self._refusals + 1 if code == EXIT_REFUSED else 0
        if self._refusals >= (self._restart_limits.max_refusals if self.has_been_ready else 1):
            message = f"{name}: {reason}" if reason else f"cannot run {name!r}: {self._last_lines()}"
            raise RoleFailed(message, code="process.refused")
        if self.has_been_ready:
            return
        self._deaths.append(self._clock.now())
        if (
            len(self._deaths) == self._restart_limits.max_deaths
            and self._deaths[-1] - self._deaths[0] <= self._restart_limits.window_s
        ):
            raise RoleFailed(
                f"cannot keep {name!r} running: it exited {self._restart_limits.max_deaths} times within "
                f"{self._restart_limits.window_s:g} s before it was ready; "
                f"{f'its last error: {reason}' if reason else self._last_lines()}",
                code="process.keeps_failing",
            )

    def _reported_error(self) -> str:
        """Returns the error that the process printed before its exit, or the last line of a traceback with the log's
        path; empty without either.

        The error ends with its code: lines of its standard output, which takes another way to the log, may follow.
        """
        tail = self._log_tail()
        _, separator, message = tail.rpartition(f"\n{ERROR_PREFIX}")
        if not separator:
            return self._traceback_end(tail)
        lines = message.strip().splitlines()
        last = max((number for number, line in enumerate(lines) if read_error(line)[1]), default=len(lines))
        return "\n".join(lines[: last + 1])

    def _traceback_end(self, tail: str) -> str:
        _, separator, trace = tail.rpartition("\nTraceback (most recent call last):\n")
        if not separator:
            return ""
        ends = [line for line in trace.splitlines() if line and not line.startswith(" ")]
        return f"{ends[0]}; its traceback is in {self.program.log}" if ends else ""

    def _last_lines(self) -> str:
        lines = self._log_tail().strip().splitlines()[-12:]
        if not lines and shutil.disk_usage(self.program.log.parent).free < _DISK_FULL_BYTES:
            return f"the disk is full, also for its log; free some space for {self.program.log.parent}"
        return "\n".join([f"the last lines of {self.program.log}:", *(f"  {line}" for line in lines)])

    def _log_tail(self) -> str:
        """Returns the end of the log of the current process, with a leading line break."""
        with self.program.log.open("rb") as file:
            file.seek(max(self._log_start, self.program.log.stat().st_size - 64 * 1024))
            return "\n" + file.read().decode(errors="replace")

    def _on_line(self, line: str) -> None:
        if line.startswith(READY):
            self.has_been_ready = True
            self._announced_address = line.removeprefix(READY)
            self._announced.set()
            self._emit("ready", message=self._announced_address)
        elif line.startswith(PROGRESS):
            self._emit("progress", message=line.removeprefix(PROGRESS))

    def _emit(self, kind: str, *, message: str = "", pid: int = 0) -> None:
        self._on_event(ProcessEvent(program=self.program.name, kind=kind, message=message, pid=pid))


def _exit_message(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exited with code {code}"
