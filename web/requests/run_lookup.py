"""Recorded and followed runs and those of this machine, and the run in a page's address."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Path
from starlette.exceptions import HTTPException

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.local_runs import LocalRun
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from web.database import run_records
from web.database.db import Database
from web.database.tables import MAX_ID, RunRecord
from web.history.report_json import report_from_json
from web.history.run_summary import RunSummary
from web.launcher.catalogue import Catalogue
from web.launcher.launcher import Launcher, UnknownRun
from web.live.followed_run import FollowedRun, FollowedRuns
from web.live.machine_runs import MachineRuns
from web.process_settings import Settings
from web.requests.commands import BoundedCache
from web.state.annotations import ANNOTATION_KINDS, Annotation
from web.state.run_state import RunState

MAX_ANNOTATION_EVENTS = 200
"""Maximum number of past events of one kind of annotation."""

RunId = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the run, from the list of runs.", examples=[1])]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """Header of the subpages of a run."""

    id: int
    name: str
    recipe: str
    is_live: bool
    policies: tuple[str, ...]
    outcomes: tuple[str, ...]
    """Possible outcomes of a sampled group in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIndex:
    """Recorded and followed runs, and those of this machine."""

    database: Database
    followed: FollowedRuns
    requested: FollowedRun
    """Run that the pages of the request follow."""
    launcher: Launcher
    machine: MachineRuns
    summaries: BoundedCache[tuple[int, int], RunSummary]
    """Summary by run record and sequence of its last report."""
    settings: BoundedCache[tuple[str, object], dict[str, Any]]
    """Settings by the snapshot of a run and the time of its change."""

    def is_live(self, run_id: int | None) -> bool:
        """Returns whether the record belongs to a connected run."""
        return run_id is not None and self.followed.by_record(run_id) is not None

    def shown(self, run_id: int) -> "ShownRun":
        """Returns the run of a record."""
        live = self.followed.by_record(run_id)
        run = live or self.requested
        return ShownRun(
            id=run_id,
            run=run,
            is_live=live is not None,
            database=self.database,
            launcher=self.launcher,
            machine=self.machine,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Recipes and runs of this machine."""

    launcher: Launcher
    catalogue: Catalogue
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """Run in a page's address."""

    id: int
    run: FollowedRun
    """The run itself if it is connected, else the one that the page follows."""
    is_live: bool
    database: Database
    launcher: Launcher
    machine: MachineRuns
    is_reading: bool = False
    """Whether its history is being read from its folder; what is read so far is shown."""

    async def with_history(self) -> "ShownRun":
        """Returns the run after its history was read, or while it is read if that takes long."""
        record = None if self.is_live else await self.database.read(lambda session: run_records.run(session, self.id))
        if record is None or await self.machine.read_history(record):
            return self
        return replace(self, is_reading=True)

    @property
    def report(self) -> Report | None:
        """Newest report of a connected run; None for a past one."""
        return self.run.state.report if self.is_live else None

    async def record(self) -> RunRecord:
        """Returns the record of the run. Raises: HTTPException for an unknown run."""
        record = await self.database.read(lambda session: run_records.run(session, self.id))
        if record is None:
            raise HTTPException(404, f"Run {self.id} not found.")
        return record

    async def local(self, record: RunRecord) -> LocalRun | None:
        """Returns the run of a record, if its folder is on this machine."""
        return await local_run(self.launcher, record)

    async def header(self) -> RunHeader:
        """Returns the header of the pages of the run. Raises: HTTPException."""
        return run_header(await self.record(), live=self.report)


LIVE, ENDED, NOT_CONNECTED = "live", "ended", "not connected"


async def local_run(launcher: Launcher, record: RunRecord) -> LocalRun | None:
    """Returns the run of a record, if its folder is on this machine."""
    try:
        return await launcher.launch(record.name)
    except UnknownRun:
        return None


def state_of(run: LocalRun | None, *, folder: str, is_heard: bool) -> str:
    """Returns the state of a run in a word: a run is ended when no process holds the lock of its folder, and not
    connected when its folder is elsewhere and no reports arrive."""
    if is_heard:
        return LIVE
    if run is not None:
        return run.state.value
    return ENDED if folder else NOT_CONNECTED


async def annotations_of(state: RunState, control: ControlPlaneClient) -> list[Annotation]:
    """Returns the annotations of the run as far back as dataflow stores events; while it is offline, those seen."""
    if not state.is_stale:
        try:
            for kind in dict.fromkeys(ANNOTATION_KINDS.values()):
                kinds = tuple(record for record, annotation in ANNOTATION_KINDS.items() if annotation is kind)
                query = EventQuery(kinds=kinds, limit=MAX_ANNOTATION_EVENTS)
                state.annotation_log.add_events((await control.events(query)).events)
        except AstraFlowError:
            return state.annotation_log.annotations  # the connection badge of the page shows the failure
    return state.annotation_log.annotations


def run_header(record: RunRecord, *, live: Report | None) -> RunHeader:
    """Builds the header. live: newest report of a live run; None for a past one."""
    recorded = report_from_json(record.report_json)
    streams = live.streams if live else recorded.streams
    flows = live.flows if live else recorded.flows
    return RunHeader(
        id=record.id or 0,
        name=record.name,
        recipe=record.recipe,
        is_live=live is not None,
        policies=tuple(stream.policy for stream in streams),
        outcomes=_outcomes(flows, streams),
    )


def _outcomes(flows: Sequence[FlowReport], streams: Sequence[StreamReport]) -> tuple[str, ...]:
    dropped = {reason for flow in flows for reason in flow.dropped}
    return ("buffered", "trained", *sorted(dropped.union(*(stream.groups.dropped for stream in streams))))
