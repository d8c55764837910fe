"""What the pages of one run share: which run the address means, and its head."""

from typing import Annotated

from fastapi import Path
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.lookups import EventQuery
from web import queries
from web.feed.pins import KINDS, Pin
from web.parts import Parts
from web.present.runs import RunHead, head_of
from web.tables import RunRecord

ASKED_EVENTS = 200
"""Of a run's past, at most so many are pinned."""

RunNumber = Annotated[int, Path(le=2**53)]
"""Databases keep no larger ones."""


def is_live(parts: Parts, run_id: int | None) -> bool:
    """Whether that record is being written: the run goes on, and is heard."""
    return run_id is not None and parts.followed.recording(run_id) is not None


def showing(parts: Parts, run_id: int) -> Parts:
    """The parts of that run, when it goes on, whichever the browser shows."""
    one = parts.followed.recording(run_id)
    return parts if one is None else parts.showing(one)


async def record_of(parts: Parts, run_id: int) -> RunRecord:
    """Raises: HTTPException for a run that was never recorded."""
    record = await parts.database.look(lambda session: queries.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"No run {run_id} was recorded here.")
    return record


async def run_head(parts: Parts, run_id: int) -> RunHead:
    """What stands over every page of a run. Raises: HTTPException."""
    record = await record_of(parts, run_id)
    return head_of(record, live=parts.state.report if is_live(parts, run_id) else None)


async def pins_of(parts: Parts) -> list[Pin]:
    """Those of the run, as far back as dataflow tells; while it does not answer, those that were seen."""
    if not parts.state.is_stale:
        query = EventQuery(kinds=tuple(KINDS), limit=ASKED_EVENTS)
        try:
            parts.state.pinned.add((await parts.control.events(query)).events)
        except AstraFlowError:
            return parts.state.pinned.pins  # the page's badge says that dataflow does not answer
    return parts.state.pinned.pins
