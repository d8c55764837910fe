"""Runs of this machine and user, active and ended, read from their folders."""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.runtime.folders.launch_facts import LAUNCH, LaunchFacts, read_launch
from astraflow.runtime.folders.run_folders import LOCK, LOGS, RUN, RunFacts, RunFolder, changed_at, runs_folder
from astraflow.runtime.folders.run_metadata import METADATA, RunMetadata, read_metadata
from astraflow.runtime.logs import get_logger

if TYPE_CHECKING:
    import psutil

log = get_logger()

LAUNCH_LOG = "launch"
"""Name of the log of the main process of a run that a page launched."""

SUMMARY = "summary.json"
"""File with the result of the run, as its process wrote it last."""

TAIL_BYTES = 64 * 1024

_FILES = (RUN, LAUNCH, METADATA, SUMMARY, f"{LOGS}/{LAUNCH_LOG}.log")
"""Files that an entry is read from."""


class LocalRunState(Enum):
    """State of the processes of a run: STARTING ─► RUNNING ─► ENDED, or ENDED at once."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """A run whose folder is on this machine."""

    folder: RunFolder
    name: str
    """Name of the run: in its facts, or else of its folder."""
    state: LocalRunState
    """State of its processes."""
    facts: RunFacts | None
    """Recorded facts; None before its process wrote them."""
    launch: LaunchFacts
    """Facts of its launch; the defaults for a run of another release."""
    metadata: RunMetadata
    final_message: str
    """Reason of its end; empty while it is active."""
    has_failed: bool
    """It ended by an error, not by its stop condition, its time limit or a person. False while it is active."""

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""
        return self.state is not LocalRunState.ENDED

    @property
    def can_resume(self) -> bool:
        """Whether it ended and has a recipe snapshot to resume from."""
        return not self.is_active and self.folder.recipe_file.exists()

    @property
    def recipe(self) -> str:
        return self.launch.recipe or (self.facts.recipe if self.facts else "")

    @property
    def started_at(self) -> float:
        """Time of its launch, or else of its latest start. Unix seconds; 0 when neither is known."""
        if self.launch.launched_at or self.facts is None:
            return self.launch.launched_at
        try:
            return datetime.fromisoformat(self.facts.started_at).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return 0.0


class LocalRuns:
    """Runs below ASTRAFLOW_HOME, or some of them. Unchanged folders are read once."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        """folders: runs to list instead of those below ASTRAFLOW_HOME."""
        self._folders = tuple(folders)
        self._known: dict[Path, tuple[object, LocalRun]] = {}

    def all(self) -> list[LocalRun]:
        """Returns all runs, the latest first. Blocks for some milliseconds per hundred runs."""
        known = {path: self._entry(path) for path in self._paths()}
        self._known = known
        runs = [_with_state(run) for _, run in known.values()]
        return sorted(runs, key=lambda run: (run.started_at, run.name), reverse=True)

    def find(self, name: str) -> LocalRun | None:
        """Returns the run of this name; None for an unknown one."""
        path = runs_folder() / name
        if not self._folders and "/" not in name and _is_run(path):
            run = self._entry(path)[1]
            if run.name == name:
                return _with_state(run)
        return next((run for run in self.all() if run.name == name), None)

    def _entry(self, path: Path) -> tuple[object, LocalRun]:
        """Returns the signature of a folder with its run, which is read again when the signature changed."""
        signature = tuple(changed_at(path / name) for name in _FILES)
        earlier = self._known.get(path)
        return earlier if earlier is not None and earlier[0] == signature else (signature, _read(RunFolder(path)))

    def _paths(self) -> Iterator[Path]:
        """Yields the folder of each run once, although several links may lead to it."""
        paths = self._folders or [Path(entry.path) for entry in _entries(runs_folder())]
        listed = set[Path]()
        for path in paths:
            real = path.resolve()
            if real not in listed and _is_run(path):
                listed.add(real)
                yield path


def main_process(run: LocalRun) -> "psutil.Process | None":
    """Returns the process that runs a run; None when it has ended or belongs to another user, also when its process
    id was reused."""
    pids = {run.launch.pid, run.facts.pid if run.facts else 0} - {0}
    return find_process(run.folder, pids)


def find_process(folder: RunFolder, pids: set[int]) -> "psutil.Process | None":
    """Returns the oldest process of this user that holds the run's lock file open, or has the folder in its command
    line. pids: candidates; all processes if it is empty."""
    import psutil  # takes 1 MB, loaded only where a run's process is looked for

    own_processes = []
    for candidate in pids or psutil.pids():
        try:
            process = psutil.Process(candidate)
            if process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE:
                own_processes += [process] if _belongs_to(process, folder) else []
        except psutil.Error:
            continue
    return min(own_processes, key=psutil.Process.create_time, default=None)


def stop_run(run: LocalRun) -> int:
    """Asks the main process of a run to end all its processes, as Ctrl-C does; returns its id.

    Raises: Conflict when it has ended, or its process cannot be found.
    """
    process = main_process(run)
    if process is not None:
        process.terminate()
        return int(process.pid)
    if run.is_active:
        raise Conflict(
            f"cannot stop the run {run.name!r}: a process of another user or container runs it; stop it there",
            code="launch.process_not_found",
        )
    raise Conflict(f"cannot stop the run {run.name!r}: it has ended; resume it or launch it again", code="launch.ended")


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


def kept_steps(folder: RunFolder, trained: Collection[str]) -> tuple[int, ...]:
    """Returns the steps of which all trained policies of a run have a checkpoint, newest first."""
    kept = [
        {int(path.name[5:]) for path in folder.checkpoints(policy).glob("step-*") if path.name[5:].isdigit()}
        for policy in trained
    ]
    return tuple(sorted(set.intersection(*kept), reverse=True)) if kept else ()


def _is_run(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in (RUN, LAUNCH))  # noqa: PTH110 (False for a name that is too long)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except FileNotFoundError:
        return []


def _read(folder: RunFolder) -> LocalRun:
    try:
        facts = folder.facts
    except InvalidInput:
        facts = None
    return LocalRun(
        folder=folder,
        name=facts.run if facts else folder.path.name,
        state=LocalRunState.ENDED,
        facts=facts,
        launch=read_launch(folder.path) or LaunchFacts(),
        metadata=_metadata(folder),
        **_end(folder),
    )


def _metadata(folder: RunFolder) -> RunMetadata:
    try:
        return read_metadata(folder.path)
    except InvalidInput as problem:
        log.warning("metadata_unreadable", folder=str(folder.path), problem=str(problem))
        return RunMetadata()


def _with_state(run: LocalRun) -> LocalRun:
    """Returns the run with its current state; a launched run is starting until its process holds the lock."""
    if run.folder.is_active:
        return replace(run, state=LocalRunState.RUNNING, final_message="", has_failed=False)
    launch = run.launch
    may_start = bool(launch.pid) or (bool(launch.actor) and run.facts is None)
    if may_start and find_process(run.folder, {launch.pid} - {0}) is not None:
        return replace(run, state=LocalRunState.STARTING, final_message="", has_failed=False)
    return run


def _belongs_to(process: "psutil.Process", folder: RunFolder) -> bool:
    if str(folder.path) in process.cmdline():
        return True
    lock = str((folder.path / LOCK).resolve())
    return any(file.path == lock for file in process.open_files())


class _End(TypedDict):
    final_message: str
    has_failed: bool


def _end(folder: RunFolder) -> _End:
    """Returns why a run ended: the reason in its summary, or else the last error that its process printed."""
    try:
        summary = json.loads((folder.path / SUMMARY).read_text())
        return _End(final_message=str(summary["reason"]), has_failed=bool(summary.get("failed")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _End(final_message=_last_error(folder), has_failed=True)  # no valid summary


def _last_error(folder: RunFolder) -> str:
    try:
        text, _ = log_tail(folder, LAUNCH_LOG)
    except InvalidInput:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else (lines[-1] if lines else "")
