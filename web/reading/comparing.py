"""Two to four runs beside each other: their series over steps or time, and the settings in which they differ."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from astraflow.runtime.runs import RunFolder, runs
from web import queries
from web.history import reading
from web.history.points import VALUES
from web.history.reading import Row
from web.history.samples import policy_subject
from web.parts import Parts
from web.tables import LaunchedRun, RunRecord

FEWEST, MOST = 2, 4
ROWS = 400

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A run's name comes from its reports: only what is one part of a path is looked for on the disk."""

_BIGGEST_RECIPE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of them."""

    record: RunRecord
    policy: str
    """The one that is shown; empty for a run of which none was recorded."""
    rows: Sequence[Row]
    settings: dict[str, str] | None
    """Of its recipe by key; None when no snapshot is known."""


async def compared(parts: Parts, run_ids: Sequence[int], policy: str) -> list[ComparedRun]:
    """The runs in the order in which they were named. Raises: HTTPException for one that was never recorded."""
    return [await _one(parts, run_id, policy) for run_id in dict.fromkeys(run_ids)]


async def _one(parts: Parts, run_id: int, policy: str) -> ComparedRun:
    record = await parts.database.look(lambda session: queries.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"No run {run_id} was recorded here.")
    known = await parts.database.look(lambda session: reading.subjects(session, run_id, "policy"))
    chosen = policy if policy in known else next(iter(known), "")
    subject = policy_subject(chosen)
    rows = await parts.database.look(lambda session: reading.rows(session, run_id, subject, VALUES, at_most=ROWS))
    return ComparedRun(record=record, policy=chosen, rows=rows, settings=await _settings(parts, record.name))


async def _settings(parts: Parts, name: str) -> dict[str, str] | None:
    """Of the snapshot in the run's folder, if it was launched from here or is in this user's folder of runs."""
    launched = await parts.database.look(lambda session: session.get(LaunchedRun, name))
    if launched is not None:
        return _read(RunFolder(Path(launched.folder)).recipe_file)
    following = next((one for one in parts.followed.all if one.name == name and one.folder is not None), None)
    if following is not None and following.folder is not None:
        return _read(following.folder.recipe_file)
    return _read(RunFolder(runs() / name).recipe_file) if _NAME.fullmatch(name) else None


def _read(file: Path) -> dict[str, str] | None:
    try:
        if file.stat().st_size > _BIGGEST_RECIPE:
            return None
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return dict(flattened(content)) if isinstance(content, dict) else None


def flattened(content: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A tree of settings as lines.

    >>> flattened({"stop": {"steps": 5}, "names": ["a", "b"]})
    [('stop.steps', '5'), ('names', '["a", "b"]')]
    """
    if isinstance(content, dict) and content:
        within = f"{prefix}." if prefix else ""
        return [line for key, value in content.items() for line in flattened(value, f"{within}{key}")]
    return [(prefix, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))]


def differences(many: Sequence[ComparedRun]) -> list[tuple[str, list[str | None]]]:
    """Settings in which they are not all alike, in order of their keys; None where a run has none of the kind."""
    known = [one.settings or {} for one in many]
    keys = sorted({key for settings in known for key in settings})
    lines = [(key, [settings.get(key) for settings in known]) for key in keys]
    return [(key, values) for key, values in lines if len(set(values)) > 1]
