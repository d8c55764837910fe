"""Runs of this machine in the terminal, read from their folders without a page."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from astraflow.cli.inspection.screen import number
from astraflow.cli.output import Table
from astraflow.cli.page.runs_tables import printable, state_text, time_text
from astraflow.client.local_runs import LAUNCH_LOG, LocalRun, LocalRuns, log_tail
from astraflow.client.offline_run import last_report
from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports.report import Report
from astraflow.runtime.folders.launch_facts import lineage

AVERAGED_STEPS = 10
"""Steps whose rewards are averaged, as on the page."""


def find_local(name: str) -> LocalRun:
    """Returns the run of this name. Raises: InvalidInput for an unknown one."""
    run = LocalRuns().find(name)
    if run is None:
        raise InvalidInput(
            f"cannot find the run {name[:120]!r}: no run of this machine has this name; list them with `astraflow "
            "runs`, or name a page with --web",
            code="run_folder.unknown",
        )
    return run


def local_rows(*, limit: int) -> list[dict[str, Any]]:
    """Returns the latest runs of this machine, each with the figures of its last recorded report."""
    return [_row(run, last_report(run.folder.path)) for run in LocalRuns().all()[:limit]]


def local_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table("run", "state", "recipe", "started (UTC)", "minutes", "step", "reward", "title and tags")
    for row in rows:
        minutes = "" if row["duration_s"] is None else f"{row['duration_s'] / 60:.1f}"
        step = "" if row["step"] is None else str(row["step"])
        words = " ".join(
            filter(None, ["*" * row["is_starred"], row["title"], *(f"#{tag}" for tag in row["tags"]), row["lineage"]])
        )
        started = time_text(row["started_at"]) if row["started_at"] else ""
        table.add(
            row["name"], state_text(row["state"]), row["recipe"], started, minutes, step, number(row["reward"]), words
        )
    return table if rows else Text("no runs yet: start one with `astraflow demo`")


def print_local_log(name: str, program: str, *, follow: bool, every_s: float) -> None:
    """Prints the end of a process's log; with `follow` also what is added. Raises: InvalidInput."""
    folder, offset = find_local(name).folder, None
    programs = folder.logs()
    chosen = program if program in programs or program != LAUNCH_LOG else next(iter(programs), program)
    while True:
        text, offset = log_tail(folder, chosen, after=offset)
        print(printable(text), end="", flush=True)  # noqa: T201 (the command's result)
        if not follow:
            return
        time.sleep(every_s)


def _row(run: LocalRun, report: Report | None) -> dict[str, Any]:
    training = report.streams[0].training if report is not None and report.streams else None
    rewards = training.rewards[-AVERAGED_STEPS:] if training is not None else ()
    started_at = run.started_at
    return {
        "name": run.name,
        "title": run.metadata.title,
        "state": run.state.value,
        "recipe": run.recipe,
        "started_at": started_at,
        "duration_s": max(0.0, report.at - started_at) if report is not None and started_at else None,
        "step": training.steps if training is not None else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "tags": run.metadata.tags,
        "group": run.metadata.group,
        "parent": run.launch.parent,
        "parent_step": run.launch.parent_step,
        "lineage": lineage(run.launch),
        "is_starred": run.metadata.is_starred,
        "reason": run.launch.reason,
        "final_message": run.final_message,
        "folder": str(run.folder.path),
    }
