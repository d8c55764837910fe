"""Launcher of runs: starts them as independent processes, lists them, stops and resumes them."""

import asyncio
import json
import re
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col, select

from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.folders.run_folders import RunFolder, runs_folder
from astraflow.runtime.logs import get_logger
from web.database.db import Database
from web.database.tables import LaunchedRun
from web.launcher.catalogue import CLI_COMMAND
from web.launcher.environments import child_environment
from web.launcher.options import LaunchOptions

if TYPE_CHECKING:
    import psutil

log = get_logger()

LAUNCH_LOG = "launch"
"""Name of the log of a run's main process."""

SUMMARY_FILE = "summary.json"
"""Result of the run, as its process wrote it last."""

TAIL_BYTES = 64 * 1024
REAP_INTERVAL_S = 0.5

_STARTED_PROCESSES: list[subprocess.Popen[bytes]] = []
"""Processes that outlive the launcher; Python warns about running processes without a reference."""


class UnknownRun(InvalidInput):
    """No run of that name was launched from here."""


class LaunchState(Enum):
    """State of a launch: STARTING ─► RUNNING ─► ENDED, or ENDED at once."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launched run with its current state."""

    name: str
    """Name of the run."""
    recipe: str
    """Name of its recipe."""
    folder: RunFolder
    state: LaunchState
    """State of its processes."""
    actor: str
    """User who launched it."""
    launched_at: float
    """Unix seconds."""
    final_message: str
    """Reason of its end, from its process; empty while it runs."""
    options: LaunchOptions
    needs_admin: bool
    """Whether it has settings that only an admin may override."""

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""
        return self.state is not LaunchState.ENDED

    @property
    def can_resume(self) -> bool:
        """Whether it ended and has a recipe snapshot to resume from."""
        return self.state is LaunchState.ENDED and self.folder.recipe_file.exists()


class Launcher:
    """Runs that were launched from here."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._folders: dict[str, RunFolder] = {}
        self._reapers: set[asyncio.Task[int]] = set()

    def folders(self) -> list[RunFolder]:
        """Returns the folders of all launched runs. Blocks: call it in a thread."""
        for row in self._database.read_sync(_rows):
            self._folders.setdefault(row.name, RunFolder(Path(row.folder)))
        return list(self._folders.values())

    async def launches(self) -> list[Launch]:
        """Returns all launched runs, the latest first."""
        rows = await self._database.read(_rows)
        return await asyncio.to_thread(lambda: [_launch(row) for row in rows])

    async def launch(self, name: str) -> Launch:
        """Returns a launched run. Raises: UnknownRun."""
        row = await self._database.read(lambda session: session.get(LaunchedRun, name))
        if row is None:
            raise UnknownRun(
                f"cannot find the run {name[:120]!r}: no such run was launched from here; see the list of launches",
                code="launch.unknown_run",
            )
        return await asyncio.to_thread(_launch, row)

    async def launch_with_key(self, key: str) -> tuple[str, str] | None:
        """Returns the request and the name of the run that was launched with this key; None for an unused key."""
        row = await self._database.read(
            lambda session: session.exec(select(LaunchedRun).where(LaunchedRun.launch_key == key)).first()
        )
        return None if row is None else (row.launch_request, row.name)

    async def start(
        self,
        recipe: str,
        name_or_path: str,
        overrides: Sequence[str],
        options: LaunchOptions,
        *,
        actor: str,
        needs_admin: bool = False,
        key: str = "",
        request: str = "",
    ) -> Launch:
        """Starts a run of a recipe, or of another run's snapshot, in a new folder.

        recipe: name of the recipe or of the other run. name_or_path: argument of `astraflow run`. overrides: checked
        overrides. needs_admin: whether only an admin may override some of them. key, request: idempotency key and the
        request with it, stored with the run before its process starts; empty for a launch without a key.
        Raises: InvalidInput when the process or its folder cannot be created.
        """
        stem = re.sub(r"[^a-z0-9]+", "-", recipe.lower()).strip("-") or "run"
        name = f"{stem}-{datetime.fromtimestamp(self._clock.wall(), UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = RunFolder(runs_folder() / name)
        row = LaunchedRun(
            name=name,
            recipe=recipe,
            folder=str(folder.path),
            actor=actor,
            launched_at=self._clock.wall(),
            pid=0,
            has_fleet=options.has_fleet,
            ends_by_itself=options.ends_by_itself,
            limit_s=options.limit_s,
            needs_admin=needs_admin,
            launch_key=key or None,
            launch_request=request,
        )
        sets = [part for override in overrides for part in ("--set", override)]
        try:
            return await self._run(row, [*options.arguments(), *sets, "--", name_or_path])
        except InvalidInput:  # no process was started, so the key must not stand for this run
            await self._database.write(lambda session: session.delete(session.get_one(LaunchedRun, name)))
            raise

    async def resume(self, name: str, options: LaunchOptions) -> Launch:
        """Resumes a run that ended. Raises: UnknownRun, Conflict while it is active, InvalidInput."""
        launch = await self.launch(name)
        if launch.state is not LaunchState.ENDED:
            raise Conflict(
                f"cannot resume the run {name!r}: it is {launch.state.value}; wait until it ends, or stop it",
                code="launch.not_ended",
            )
        if not launch.can_resume:
            raise InvalidInput(
                f"cannot resume the run {name!r}: it never started; launch its recipe", code="launch.no_snapshot"
            )
        row = await self._database.read(lambda session: session.get_one(LaunchedRun, name))
        return await self._run(row, [*options.arguments(), "--", str(launch.folder.recipe_file)])

    async def stop(self, name: str) -> Launch:
        """Terminates a run gracefully: its nodes return their tasks. Raises: UnknownRun, Conflict when it has ended."""
        launch = await self.launch(name)
        process = await asyncio.to_thread(_process_of, launch.folder, await self._pid(name))
        if process is None:
            raise Conflict(
                f"cannot stop the run {name!r}: it has ended; resume it or launch it again", code="launch.ended"
            )
        process.terminate()
        log.info("run stopped", run=name, pid=process.pid)
        return launch

    async def _pid(self, name: str) -> int:
        return (await self._database.read(lambda session: session.get_one(LaunchedRun, name))).pid

    async def _run(self, row: LaunchedRun, arguments: Sequence[str]) -> Launch:
        folder = RunFolder(Path(row.folder))
        await asyncio.to_thread((folder.path / SUMMARY_FILE).unlink, missing_ok=True)  # of an earlier start
        paths = ["--run-dir", str(folder.path), "--json", str(folder.path / SUMMARY_FILE)]
        argv = [*CLI_COMMAND, "run", "--no-web", *paths, *arguments]
        row.pid = 0
        await self._database.write(lambda session: session.merge(row))  # first: no process without a listed run
        process = await self._start_process(folder, argv)
        _STARTED_PROCESSES.append(process)
        reaper = asyncio.create_task(_reap(process))  # avoids a zombie process
        self._reapers.add(reaper)
        reaper.add_done_callback(self._reapers.discard)
        log.info("run launched", run=row.name, pid=process.pid)
        await self._store_pid(row, process.pid)
        return await asyncio.to_thread(_launch, row)

    async def _store_pid(self, row: LaunchedRun, pid: int) -> None:
        """Stores the process id. A failure does not fail the launch: a process without one is found by its folder."""
        row.pid = pid
        try:
            await self._database.write(lambda session: session.merge(row))
        except (AstraFlowError, SQLAlchemyError) as problem:
            log.warning("process_id_not_stored", run=row.name, pid=pid, problem=str(problem))

    @staticmethod
    async def _start_process(folder: RunFolder, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        file = folder.log(LAUNCH_LOG)
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.parent.mkdir(exist_ok=True)
            with file.open("ab") as out:
                return await asyncio.to_thread(
                    subprocess.Popen,
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=child_environment(),
                    start_new_session=True,
                )
        except OSError as problem:
            raise InvalidInput(
                f"cannot start the run in {str(folder.path)!r}: {problem.strerror}; check the runs folder",
                code="launch.start_failed",
            ) from None


def log_tail(folder: RunFolder, program: str, *, after: int | None = None) -> tuple[str, int]:
    """Returns the end of a process's log, or the part after offset `after`; and the size of the log in bytes.

    Raises: InvalidInput for a process without a log.
    """
    if program not in folder.logs():
        raise InvalidInput(
            f"cannot read the log of {program[:80]!r}: no such log; known: {', '.join(folder.logs()) or 'none yet'}",
            code="launch.unknown_log",
        )
    with folder.log(program).open("rb") as file:
        size = file.seek(0, 2)
        begin = max(0, size - TAIL_BYTES) if after is None or after > size else max(after, size - TAIL_BYTES)
        file.seek(begin)
        return file.read(TAIL_BYTES).decode(errors="replace"), size


async def _reap(process: subprocess.Popen[bytes]) -> int:
    """Waits until a process has ended and returns its exit code."""
    while process.poll() is None:  # noqa: ASYNC110 (the event loop is not notified of processes started in a thread)
        await asyncio.sleep(REAP_INTERVAL_S)
    _STARTED_PROCESSES.remove(process)
    return process.returncode


def _rows(session: Session) -> Sequence[LaunchedRun]:
    return session.exec(select(LaunchedRun).order_by(col(LaunchedRun.launched_at).desc())).all()


def _options(row: LaunchedRun) -> LaunchOptions:
    return LaunchOptions(has_fleet=row.has_fleet, ends_by_itself=row.ends_by_itself, limit_s=row.limit_s)


def _launch(row: LaunchedRun) -> Launch:
    folder = RunFolder(Path(row.folder))
    state = LaunchState.RUNNING if folder.is_active else LaunchState.ENDED
    if state is LaunchState.ENDED and _process_of(folder, row.pid) is not None:
        state = LaunchState.STARTING
    return Launch(
        name=row.name,
        recipe=row.recipe,
        folder=folder,
        state=state,
        actor=row.actor,
        launched_at=row.launched_at,
        final_message=_final_message(folder) if state is LaunchState.ENDED else "",
        options=_options(row),
        needs_admin=row.needs_admin,
    )


def _process_of(folder: RunFolder, pid: int) -> "psutil.Process | None":
    """Returns the process of a run; None when it has ended, also when its process id was reused.

    pid: 0 when it was not stored; then the oldest process with the run's folder is its main process.
    """
    import psutil  # takes 1 MB, loaded only where a launched run's process is looked for

    own_processes = []
    for candidate in [pid] if pid else psutil.pids():
        try:
            process = psutil.Process(candidate)
            if str(folder.path) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                own_processes.append(process)
        except psutil.Error:
            continue
    return min(own_processes, key=psutil.Process.create_time, default=None)


def _final_message(folder: RunFolder) -> str:
    """Returns why a run ended: the reason in its summary, or else the last error that its process printed."""
    try:
        return str(json.loads((folder.path / SUMMARY_FILE).read_text())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no valid summary
    try:
        text, _ = log_tail(folder, LAUNCH_LOG)
    except InvalidInput:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else (lines[-1] if lines else "")
