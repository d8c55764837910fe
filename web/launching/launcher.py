"""Starts runs as processes of their own, which outlive this one; finds them again, stops them, lets them go on."""

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

import psutil
from sqlmodel import Session, col, select

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.runs import RunFolder, runs
from web.db import Database
from web.launching.command import COMMAND, environment
from web.launching.options import LaunchOptions
from web.tables import LaunchedRun

log = get_logger()

LOG = "launch"
"""Name of the log of the process that runs a run."""

SUMMARY = "summary.json"
"""What came of the run, as its process wrote it last."""

TAIL_BYTES = 64 * 1024
REAP_EVERY_S = 0.5

_STARTED: list[subprocess.Popen[bytes]] = []
"""They outlive whoever launched them; Python complains of a running process that nobody remembers."""


class UnknownRun(InvalidInput):
    """No run of that name was launched from here."""


class LaunchState(Enum):
    """What has become of a launch: STARTING ─► RUNNING ─► ENDED, or ENDED at once."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A run that was started from here, as it stands."""

    name: str
    recipe: str
    folder: RunFolder
    state: LaunchState
    actor: str
    launched_at: float
    last_word: str
    """How it ended, as its process said it last; empty while it goes on."""
    options: LaunchOptions
    needs_admin: bool
    """Whether it has settings that only an admin may override."""

    @property
    def can_resume(self) -> bool:
        """Whether it ended and has something to go on with."""
        return self.state is LaunchState.ENDED and self.folder.recipe_file.exists()


class Launcher:
    """The runs that were started from here."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._folders: dict[str, RunFolder] = {}
        self._children: set[asyncio.Task[int]] = set()

    def folders(self) -> list[RunFolder]:
        """Folders of all of them. Blocks: for a thread."""
        for row in self._database.look_now(_rows):
            self._folders.setdefault(row.name, RunFolder(Path(row.folder)))
        return list(self._folders.values())

    async def launches(self) -> list[Launch]:
        """All of them, the latest first."""
        rows = await self._database.look(_rows)
        return await asyncio.to_thread(lambda: [_launch(row) for row in rows])

    async def launch(self, name: str) -> Launch:
        """The one of that name. Raises: UnknownRun."""
        row = await self._database.look(lambda session: session.get(LaunchedRun, name))
        if row is None:
            raise UnknownRun(f"no run called {name[:120]!r} was launched from here")
        return await asyncio.to_thread(_launch, row)

    async def start(
        self,
        recipe: str,
        place: str,
        overrides: Sequence[str],
        options: LaunchOptions,
        *,
        actor: str,
        needs_admin: bool = False,
    ) -> Launch:
        """Start a run of a recipe, or of another run's snapshot, in a new folder.

        recipe: its name, or that of the other run. place: as `astraflow run` takes it. overrides: as they were
        checked. needs_admin: whether only an admin may override some of them.
        Raises: InvalidInput when the process or its folder cannot be made.
        """
        stem = re.sub(r"[^a-z0-9]+", "-", recipe.lower()).strip("-") or "run"
        name = f"{stem}-{datetime.fromtimestamp(self._clock.wall(), UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        folder = RunFolder(runs() / name)
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
        )
        sets = [part for override in overrides for part in ("--set", override)]
        return await self._run(row, [*options.arguments(), *sets, "--", place])

    async def resume(self, name: str, options: LaunchOptions) -> Launch:
        """Let a run that ended go on where it was. Raises: UnknownRun, Conflict while it goes on, InvalidInput."""
        launch = await self.launch(name)
        if launch.state is not LaunchState.ENDED:
            raise Conflict(f"the run {name} is {launch.state.value}: there is nothing to resume")
        if not launch.can_resume:
            raise InvalidInput(f"the run {name} never began, so there is nothing to go on with: launch it anew")
        row = await self._database.look(lambda session: session.get_one(LaunchedRun, name))
        return await self._run(row, [*options.arguments(), "--", str(launch.folder.recipe_file)])

    async def stop(self, name: str) -> Launch:
        """Ask a run to end: its nodes hand back what they have. Raises: UnknownRun, Conflict when it has ended."""
        launch = await self.launch(name)
        process = await asyncio.to_thread(_process_of, launch.folder, await self._pid(name))
        if process is None:
            raise Conflict(f"the run {name} has ended already")
        process.terminate()
        log.info("run_stopped", run=name, pid=process.pid)
        return launch

    async def _pid(self, name: str) -> int:
        return (await self._database.look(lambda session: session.get_one(LaunchedRun, name))).pid

    async def _run(self, row: LaunchedRun, arguments: Sequence[str]) -> Launch:
        folder = RunFolder(Path(row.folder))
        await asyncio.to_thread((folder.path / SUMMARY).unlink, missing_ok=True)  # of its life before this one
        places = ["--run-dir", str(folder.path), "--json", str(folder.path / SUMMARY)]
        argv = [*COMMAND, "run", "--no-web", *places, *arguments]
        process = await self._started(folder, argv)
        _STARTED.append(process)
        row.pid = process.pid
        await self._database.do(lambda session: session.merge(row))
        watching = asyncio.create_task(_reaped(process))  # else a zombie stays while this process lives
        self._children.add(watching)
        watching.add_done_callback(self._children.discard)
        log.info("run_launched", run=row.name, pid=process.pid)
        return await self.launch(row.name)

    @staticmethod
    async def _started(folder: RunFolder, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        file = folder.log(LOG)
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
                    env=environment(),
                    start_new_session=True,
                )
        except OSError as problem:
            raise InvalidInput(f"the run could not be started in {folder.path}: {problem.strerror}") from None


def tail(folder: RunFolder, program: str, *, after: int | None = None) -> tuple[str, int]:
    """The end of one process's log, or what came after a place in it; and the place where it ends now.

    Raises: InvalidInput for a process that has no log there.
    """
    if program not in folder.logs():
        raise InvalidInput(f"{program[:80]!r} has no log here; there are: {', '.join(folder.logs()) or 'none yet'}")
    with folder.log(program).open("rb") as file:
        size = file.seek(0, 2)
        begin = max(0, size - TAIL_BYTES) if after is None or after > size else max(after, size - TAIL_BYTES)
        file.seek(begin)
        return file.read(TAIL_BYTES).decode(errors="replace"), size


async def _reaped(process: subprocess.Popen[bytes]) -> int:
    """Its exit code, once it has ended."""
    while process.poll() is None:  # noqa: ASYNC110 (processes that were started by a thread wake nobody)
        await asyncio.sleep(REAP_EVERY_S)
    _STARTED.remove(process)
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
        last_word=_last_word(folder) if state is LaunchState.ENDED else "",
        options=_options(row),
        needs_admin=row.needs_admin,
    )


def _process_of(folder: RunFolder, pid: int) -> psutil.Process | None:
    """The process that runs a run; None when it has ended, also when its number is another's now."""
    try:
        process = psutil.Process(pid)
        is_ours = str(folder.path) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if is_ours else None


def _last_word(folder: RunFolder) -> str:
    """Why it ended: from its summary, or else the last error that its process printed."""
    try:
        return str(json.loads((folder.path / SUMMARY).read_text())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it did not come to that
    try:
        text, _ = tail(folder, LOG)
    except InvalidInput:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else (lines[-1] if lines else "")
