"""Source of samples and evaluations of a run: its dataflow while it is live, then its run directory."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from astraflow.client.offline_run import OfflineRun
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.evaluations import EvaluationReport
from astraflow.contract.queries import RewardHistogram, RewardQuery, TrajectoryPage, TrajectoryQuery
from astraflow.runtime.run_folders import RunFolder
from web.database.tables import RunRecord
from web.requests.context import RequestContext
from web.requests.run_lookup import is_live, require_record, showing


class SampleSource(Protocol):
    """Interface of a source: the client of the control plane, or of a run directory."""

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns sampled trajectories."""

    async def rewards(self, query: RewardQuery) -> RewardHistogram:
        """Returns the histogram of their rewards."""

    async def evaluations(self, *, before: int | None = None, limit: int = 20) -> tuple[EvaluationReport, ...]:
        """Returns evaluation rounds, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSamples:
    """Source of a run's samples with the data to display them."""

    source: SampleSource
    node_names: Mapping[str, str]
    """Node names by node id."""
    record_note: str
    """Note about a recorded run; empty for a live run."""


async def samples_of_run(context: RequestContext, run_id: int) -> RunSamples:
    """Returns the source of a run. Raises: HTTPException for an unknown run, Unavailable without a readable source."""
    record = await require_record(context, run_id)
    if is_live(context, run_id):
        context = showing(context, run_id)
        report = context.state.report
        names = {str(node.id): node.facts.name for node in report.nodes} if report else {}
        return RunSamples(source=context.control, node_names=names, record_note="")
    location = str(context.settings.run_dir or "") if context.settings.is_read_only else record.folder
    folder = await asyncio.to_thread(_run_folder, location, record.name)
    last_report = f"{datetime.fromtimestamp(record.last_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    is_over = not folder.is_active
    state = f"the run ended at {last_report}" if is_over else f"the run is not connected, last report at {last_report}"
    return RunSamples(source=OfflineRun(folder.path), node_names=_node_names(record), record_note=f"Recorded; {state}.")


def _run_folder(location: str, name: str) -> RunFolder:
    """Returns the run directory of a run. Raises: Unavailable."""
    if not location:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and its run directory is unknown; open the "
            "directory with `astraflow view RUN_DIR` on its machine",
            code="samples.run_dir_unknown",
        )
    folder = RunFolder(Path(location))
    try:
        found_run = folder.facts.run
    except InvalidInput as problem:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and its run directory is "
            f"unreadable: {problem}",
            code="samples.run_dir_unreadable",
        ) from problem
    if found_run != name:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and {location!r} belongs to the run "
            f"{found_run!r}",
            code="samples.run_dir_reused",
        )
    if not OfflineRun(folder.path).exists:
        raise Unavailable(
            f"cannot read the samples of {name!r}: the run is not connected and its run directory {location!r} has no "
            "dataflow/history.sqlite",
            code="samples.no_history",
        )
    return folder


def _node_names(record: RunRecord) -> dict[str, str]:
    """Returns the names of the nodes in the last report by id; empty when the report cannot be read."""
    try:
        nodes = json.loads(record.report_json)["nodes"]
        return {str(node["id"]): str(node["facts"]["name"]) for node in nodes}
    except (KeyError, TypeError, ValueError):
        return {}  # recorded by another release: nodes are shown by id
