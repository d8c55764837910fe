"""Ended runs in ASTRAFLOW_HOME: listed with size, age and last step, and removed."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.cli.run_directory import last_step
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.toml import read_json
from astraflow.runtime.folders.run_folders import LOCK, RUN, RunFolder, runs_folder
from astraflow.runtime.locks import exclusive_lock


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """Run below ASTRAFLOW_HOME that no process runs now."""

    name: str
    folder: str
    size_bytes: int
    ended_at: float
    """Last change of a file in its folder. Unix time in seconds."""
    last_step: int | None
    """Step of the newest checkpoint; None without a checkpoint, 0 where only the initial weights are stored."""
    is_untrained: bool
    """True if the run should train a policy and trained no step."""


def find_ended_runs() -> list[EndedRun]:
    """Returns the ended runs whose folders are below ASTRAFLOW_HOME, the oldest first. Links to folders elsewhere are
    left out."""
    folders = [path for path in runs_folder().glob("*") if path.is_dir() and not path.is_symlink()]
    has_run = [path for path in folders if (path / RUN).exists() or (path / LOCK).exists()]
    runs = [_ended_run(path) for path in has_run if not RunFolder(path).is_active]
    return sorted(runs, key=lambda run: run.ended_at)


def removable(runs: Sequence[EndedRun], *, now: float, older_than_days: float | None) -> list[EndedRun]:
    """Returns the runs without a step, and those that ended earlier than `older_than_days` ago."""
    earliest = now - older_than_days * 86400 if older_than_days is not None else float("-inf")
    return [run for run in runs if run.is_untrained or run.ended_at < earliest]


def remove(run: EndedRun) -> None:
    """Removes the folder of a run. Raises: InvalidInput when a process runs it now; OSError."""
    refusal = InvalidInput(
        f"cannot remove the run {run.name!r}: it is active now; stop it first (Ctrl-C in its terminal)",
        code="run_directory.active",
    )
    with exclusive_lock(Path(run.folder) / LOCK, refusal=refusal):
        shutil.rmtree(run.folder)


def remove_dangling_links() -> int:
    """Removes the links to run folders elsewhere that do not exist any more; returns their number."""
    dangling = [path for path in runs_folder().glob("*") if path.is_symlink() and not path.exists()]
    for path in dangling:
        path.unlink(missing_ok=True)
    return len(dangling)


def _ended_run(folder: Path) -> EndedRun:
    step = last_step(folder)
    return EndedRun(
        name=folder.name,
        folder=str(folder),
        size_bytes=sum(path.lstat().st_size for path in folder.rglob("*")),
        ended_at=max(path.lstat().st_mtime for path in (folder, *folder.iterdir())),
        last_step=step,
        is_untrained=not step and _trains(folder),
    )


def _trains(folder: Path) -> bool:
    """Returns whether the recipe of a run trains a policy; True for a run without a readable recipe."""
    try:
        policies = read_json(RunFolder(folder).recipe_file)["policies"].values()
        return any(policy.get("is_trained", True) for policy in policies)
    except (InvalidInput, KeyError, AttributeError):
        return True
