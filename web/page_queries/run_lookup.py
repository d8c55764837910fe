"""Lookup of the run in a page's address, and the header of its pages."""

from typing import Annotated

from fastapi import Path
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.queries import EventQuery
from web import run_records
from web.live.annotations import ANNOTATION_KINDS, Annotation
from web.request_context import RequestContext
from web.tables import RunRecord
from web.views.runs import RunHeader, run_header

MAX_ANNOTATION_EVENTS = 200
"""Maximum number of past events that become annotations."""

RunNumber = Annotated[int, Path(le=2**53)]
"""Id of a run; databases store no larger integers."""


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
