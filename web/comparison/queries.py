"""Comparison of two to eight runs: their series over steps or time, and the settings that differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException

from astraflow.runtime.folders.run_folders import RunFolder
from web.database import run_records
from web.database.tables import RunRecord
from web.history import series_queries
from web.history.points import VALUES
from web.history.samples import policy_subject
from web.history.series_queries import Row
from web.history.training_steps import training_rows
from web.requests.recipe_settings import read_settings, setting_text
from web.requests.run_lookup import RunIndex, local_run

MIN_RUNS, MAX_RUNS = 2, 8
ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """Run in a comparison."""

    record: RunRecord
    policy: str
    """Shown policy; empty for a run without recorded policies."""
    rows: Sequence[Row]
    training: Sequence[Row]
    """Training metrics by step."""
    settings: dict[str, str] | None
    """Settings of its recipe by key; None without a snapshot."""


async def compared_runs(
    index: RunIndex, run_ids: Sequence[int], policy: str, *, training_at_most: int | None = ROWS
) -> list[ComparedRun]:
    """Returns the runs in the given order, without duplicates. Raises: HTTPException for a run without a record.

    training_at_most: maximum rows of the training metrics of a run; None for all steps.
    """
    return [await _compared_run(index, run_id, policy, training_at_most) for run_id in dict.fromkeys(run_ids)]


async def _compared_run(index: RunIndex, run_id: int, policy: str, training_at_most: int | None) -> ComparedRun:
    record = await index.database.read(lambda session: run_records.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"Run {run_id} not found.")
    if not index.is_live(run_id):
        await index.machine.read_history(record)
    policies = await index.database.read(lambda session: series_queries.subjects(session, run_id, "policy"))
    shown_policy = policy if policy in policies else next(iter(policies), "")
    subject = policy_subject(shown_policy)
    rows = await index.database.read(
        lambda session: series_queries.rows(session, run_id, subject, VALUES, at_most=ROWS)
    )
    training = await index.database.read(
        lambda session: training_rows(session, run_id, shown_policy, at_most=training_at_most)
    )
    return ComparedRun(
        record=record,
        policy=shown_policy,
        rows=rows,
        training=training.rows,
        settings=await _recipe_settings(index, record),
    )


async def _recipe_settings(index: RunIndex, record: RunRecord) -> dict[str, str] | None:
    """Returns the settings of a run's snapshot, if its folder is on this machine."""
    run = await local_run(index.launcher, record)
    if run is not None:
        return _read(run.folder.recipe_file)
    return _read(RunFolder(Path(record.folder)).recipe_file) if record.folder else None


def _read(file: Path) -> dict[str, str] | None:
    settings = read_settings(file)
    return None if settings is None else {key: setting_text(value) for key, value in settings.items()}


def differences(many: Sequence[ComparedRun]) -> list[tuple[str, list[str | None]]]:
    """Returns the settings that differ between the runs, sorted by key; None for a run without the setting."""
    by_run = [run.settings or {} for run in many]
    keys = sorted({key for settings in by_run for key in settings})
    lines = [(key, [settings.get(key) for settings in by_run]) for key in keys]
    return [(key, values) for key, values in lines if len(set(values)) > 1]
