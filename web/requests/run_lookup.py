"""Lookup of the run in a page's address, and the header of its pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import FlowReport, Report, StreamReport
from web.database import run_records
from web.database.tables import MAX_ID, RunRecord
from web.history.report_json import report_from_json
from web.requests.context import RequestContext
from web.state.annotations import ANNOTATION_KINDS, Annotation

MAX_ANNOTATION_EVENTS = 200
"""Maximum number of past events that become annotations."""

RunNumber = Annotated[int, Path(le=MAX_ID)]
"""Id of a run."""


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


def is_live(context: RequestContext, run_id: int | None) -> bool:
    """Returns whether the record belongs to a connected run."""
    return run_id is not None and context.followed.by_record(run_id) is not None


def showing(context: RequestContext, run_id: int) -> RequestContext:
    """Returns the context of that run if it is live, else the given context."""
    live_run = context.followed.by_record(run_id)
    return context if live_run is None else context.context_of_run(live_run)


async def require_record(context: RequestContext, run_id: int) -> RunRecord:
    """Returns the record of a run. Raises: HTTPException for an unknown run."""
    record = await context.database.read(lambda session: run_records.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"Run {run_id} not found.")
    return record


async def load_run_header(context: RequestContext, run_id: int) -> RunHeader:
    """Returns the header of the pages of a run. Raises: HTTPException."""
    record = await require_record(context, run_id)
    return run_header(record, live=context.state.report if is_live(context, run_id) else None)


async def annotations_of(context: RequestContext) -> list[Annotation]:
    """Returns the annotations of the run as far back as dataflow stores events; while it is offline, those seen."""
    if not context.state.is_stale:
        query = EventQuery(kinds=tuple(ANNOTATION_KINDS), limit=MAX_ANNOTATION_EVENTS)
        try:
            context.state.annotation_log.add_events((await context.control.events(query)).events)
        except AstraFlowError:
            return context.state.annotation_log.annotations  # the connection badge of the page shows the failure
    return context.state.annotation_log.annotations


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
    return ("buffered", "trained", *sorted(dropped.union(*(stream.dropped for stream in streams))))
