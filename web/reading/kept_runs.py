"""Who is asked what a run sampled and evaluated: its dataflow while it goes on, then what it left in its folder."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from astraflow.client.kept import KeptRun
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.evaluations import EvaluationReport
from astraflow.contract.lookups import RewardQuery, RewardSpread, TrajectoryPage, TrajectoryQuery
from astraflow.runtime.runs import RunFolder
from web.parts import Parts
from web.reading.run_pages import is_live, record_of, showing
from web.tables import RunRecord


class Source(Protocol):
    """Who answers: the client of the control plane, or that of a folder."""

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Sampled trajectories."""

    async def rewards(self, query: RewardQuery) -> RewardSpread:
        """How their rewards are spread."""

    async def evaluations(self, *, before: int | None = None, limit: int = 20) -> tuple[EvaluationReport, ...]:
        """Rounds, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who answers for a run, and what the answers are to be read with."""

    source: Source
    names: Mapping[str, str]
    """Of nodes, by id."""
    standing: str
    """What the page says of a record; empty for a run that goes on."""


async def told_of(parts: Parts, run_id: int) -> Told:
    """Raises: HTTPException for a run that was never recorded, Unavailable where nothing of it can be asked."""
    record = await record_of(parts, run_id)
    if is_live(parts, run_id):
        parts = showing(parts, run_id)
        report = parts.state.report
        names = {str(node.id): node.facts.name for node in report.nodes} if report else {}
        return Told(source=parts.control, names=names, standing="")
    place = str(parts.settings.run_dir or "") if parts.settings.is_read_only else record.folder
    folder = await asyncio.to_thread(_folder, place, record.name)
    heard = f"{datetime.fromtimestamp(record.last_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    is_over = not folder.is_active
    standing = f"the run ended at {heard}" if is_over else f"the run is not connected, and was last heard at {heard}"
    return Told(source=KeptRun(folder.path), names=_names(record), standing=f"Recorded; {standing}.")


def _folder(place: str, name: str) -> RunFolder:
    """Where the run of that name left what there is. Raises: Unavailable."""
    if not place:
        raise Unavailable(
            f"{name} is not connected, and where it keeps its trajectories is not known here: they are in its run "
            "directory, which `astraflow view RUN_DIR` opens on its machine"
        )
    folder = RunFolder(Path(place))
    try:
        found = folder.facts.run
    except InvalidInput as problem:
        raise Unavailable(f"{name} is not connected, and its run directory is gone: {problem}") from problem
    if found != name:
        raise Unavailable(f"{name} is not connected, and {place} holds another run now: {found}")
    if not KeptRun(folder.path).exists:
        raise Unavailable(f"{name} is not connected, and its run directory {place} has no dataflow/history.sqlite")
    return folder


def _names(record: RunRecord) -> dict[str, str]:
    """Of the nodes in the last report, as far as it is known what they were called."""
    try:
        nodes = json.loads(record.report_json)["nodes"]
        return {str(node["id"]): str(node["facts"]["name"]) for node in nodes}
    except (KeyError, TypeError, ValueError):
        return {}  # what another release recorded: nodes go by their ids
