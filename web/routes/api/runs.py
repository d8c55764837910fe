"""`/api/v1/runs`: every run that this page has followed, as it was recorded."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.exceptions import HTTPException

from web import queries
from web.door.roles import Need, needs
from web.parts import Parts, PartsOf
from web.reading.run_pages import is_live
from web.routes.api.terms import LARGEST, PREFIX, Filled, Limit, refusals
from web.tables import RunRecord

router = APIRouter(prefix=PREFIX, tags=["runs"])


class RunAnswer(Filled):
    """A run."""

    id: int
    name: str
    recipe: str
    dataflow: str
    started_at: float = Field(description="Unix seconds.")
    last_at: float = Field(description="Unix seconds of its newest report.")
    last_sequence: int
    is_live: bool


class RunDetail(RunAnswer):
    """A run, with the last report of it."""

    report: dict[str, Any] | None = Field(description="As it was recorded; null when that cannot be read (any more).")


class RunList(Filled):
    """A page of runs, newest first."""

    items: list[RunAnswer]
    total: int
    page: int
    pages: int


@router.get("/runs", response_model=RunList, responses=refusals())
@needs(Need.READ)
async def runs(
    parts: PartsOf,
    page: Annotated[int, Query(ge=1, le=1_000_000, description="From 1; beyond the last it is empty.")] = 1,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Every run, newest first."""
    found = await parts.database.look(queries.runs)
    return {
        "items": [_answer(parts, record) for record in found[(page - 1) * limit : page * limit]],
        "total": len(found),
        "page": page,
        "pages": max(1, -(-len(found) // limit)),
    }


@router.get("/runs/{run_id}", response_model=RunDetail, responses=refusals(404))
@needs(Need.READ)
async def one(parts: PartsOf, run_id: Annotated[int, Path(ge=1, le=LARGEST)]) -> dict[str, Any]:
    """One run, with the last report of it."""
    record = await parts.database.look(lambda session: queries.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"no run {run_id} was recorded")
    return _answer(parts, record) | {"report": _report(record)}


def _answer(parts: Parts, record: RunRecord) -> dict[str, Any]:
    return record.model_dump(exclude={"report_json", "folder"}) | {"is_live": is_live(parts, record.id)}


def _report(record: RunRecord) -> dict[str, Any] | None:
    try:
        found = json.loads(record.report_json)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
