"""The processes of a run, each by its pid: started, killed, stopped, terminated, and restarted."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.cli.options import TOKEN
from astraflow.cli.running.programs import ONE_THREAD
from astraflow.cli.running.supervisor import READY, Program, start_program
from astraflow.runtime.processes.child import LoggedProcess
from astraflow.runtime.service import ERROR_PREFIX, EXIT_FAILED, EXIT_SIGNALLED, read_error

TOKEN_OF_RUN = "token-of-the-soak"
GRACE_S = 10.0
"""Seconds for a process to end after SIGTERM."""

RESTART_S = 1.0
"""Pause before the restart of a process that ended because a service that it needs was away. Seconds."""

EXPECTED_CODES = (0, EXIT_SIGNALLED + signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a process that was killed or asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """A process that ended without a request."""

    process: str
    code: int
    log_tail: str


@dataclass(slots=True)
class FaultCounts:
    """Counts of the faults in the run's processes."""

    kills: list[tuple[float, str]] = field(default_factory=list)
    """Time (monotonic seconds) and process of each kill."""
    stops: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    outages: Counter[str] = field(default_factory=Counter)
    """Processes that ended with an error that says which service was away."""
    surprises: list[ProcessExit] = field(default_factory=list)


class Process:
    """One role. While it should run, it is restarted, after a pause, whenever it has ended."""

    def __init__(
        self,
        program: Program,
        fault_counts: FaultCounts,
        *,
        on_up: Callable[[bool], None] | None = None,
        expected_codes: Collection[int] = EXPECTED_CODES,
        outage_codes: Collection[str] = (),
        end_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        """on_up: called when a service is ready, and when it is gone. expected_codes: exit codes after a kill or a
        request to end. outage_codes: codes of errors with which it may end by itself, to be restarted. end_signal: asks
        it to end."""
        self.name = program.name
        self._program = program
        self._tally = fault_counts
        self._expected_codes = expected_codes
        self._outage_codes = outage_codes
        self._end_signal = end_signal
        self._on_up = on_up or (lambda is_up: None)
        self._child: LoggedProcess | None = None
        self._pause_s = 0.0
        self._is_expected = False
        self._is_stopped = False
        self._is_wanted = True
        self._changed = asyncio.Event()
        self.started_at = 0.0
        """Monotonic seconds."""

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Keeps the process running until `finish`."""
        try:
            while self._is_wanted:
                await self._live()
                if self._is_wanted:
                    await asyncio.sleep(self._pause_s)
                    self._pause_s = 0.0
        finally:
            if self._child is not None:
                self._signal(signal.SIGCONT)
                await self._child.stop()

    def kill(self, *, pause_s: float) -> None:
        """Sends `kill -9` to a running process."""
        if self._strike(signal.SIGKILL, pause_s):
            self._tally.kills.append((time.monotonic(), self.name))
            self._on_up(False)

    def end(self, *, pause_s: float) -> None:
        """Sends SIGTERM to a process that can handle it."""
        if not self._is_stopped and self._strike(signal.SIGTERM, pause_s):
            self._tally.ends[self.name] += 1

    def crash(self, *, pause_s: float) -> None:
        """Sends SIGQUIT, at which a database server ends at once, without writing its memory to disk."""
        if self._strike(signal.SIGQUIT, pause_s):
            self._tally.kills.append((time.monotonic(), self.name))

    async def stop(self, for_s: float) -> None:
        """Stops the process for this time, unless it is killed meanwhile."""
        pid = self.pid
        if pid is None or self._is_expected or self._is_stopped:
            return
        self._signal(signal.SIGSTOP)
        self._is_stopped = True
        self._tally.stops[self.name] += 1
        try:
            await asyncio.sleep(for_s)
        finally:
            if self.pid == pid:
                self._signal(signal.SIGCONT)
                self._is_stopped = False

    async def finish(self) -> None:
        """Terminates the process for good, and waits for its end."""
        self._is_wanted = False
        self._is_expected = True
        if self._child is not None:
            self._signal(self._end_signal)
            async with asyncio.timeout(GRACE_S):
                while self._child is not None:
                    self._changed.clear()
                    await self._changed.wait()

    def _strike(self, number: signal.Signals, pause_s: float) -> bool:
        if self._child is None or self._is_expected:
            return False
        self._is_expected = True
        self._pause_s = pause_s
        self._signal(number)
        return True

    async def _live(self) -> None:
        log_start = self._program.log.stat().st_size if self._program.log.exists() else 0
        self._is_expected = self._is_stopped = False
        self.started_at = time.monotonic()
        self._child = await start_program(self._program, self._on_line)
        code = await self._child.wait()
        await self._child.stop()
        self._child = None
        self._changed.set()
        self._on_up(False)
        if not self._is_expected or code not in self._expected_codes:
            self._note_exit(code, self._program.log.read_bytes()[log_start:].decode(errors="replace"))

    def _note_exit(self, code: int, text: str) -> None:
        errors = [line for line in text.splitlines() if line.startswith(ERROR_PREFIX)]
        if code == EXIT_FAILED and errors and read_error(errors[-1])[1] in self._outage_codes:
            self._tally.outages[self.name] += 1
            self._pause_s = RESTART_S
        else:
            self._tally.surprises.append(ProcessExit(process=self.name, code=code, log_tail=text[-3000:]))

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None and Path(f"/proc/{pid}").exists():
            os.kill(pid, number)

    def _on_line(self, line: str) -> None:
        if line.startswith(READY):
            self._on_up(True)


def program(role: str, name: str, recipe: Path, directory: Path, *options: str) -> Program:
    """Returns the command `astraflow serve ROLE` on the soak's recipe."""
    return cli_program(name, directory, "serve", role, str(recipe), *options)


def cli_program(name: str, directory: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Program:
    """Returns a command of AstraFlow, with its log in `directory`."""
    return Program(
        name=name,
        argv=(sys.executable, "-m", "astraflow.cli", *arguments),
        log=directory / "logs" / f"{name}.log",
        environment={TOKEN: TOKEN_OF_RUN, **ONE_THREAD, **(environment or {})},
    )
