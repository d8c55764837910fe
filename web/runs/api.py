"""`/api/v1/runs`: the recorded runs."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.exceptions import HTTPException

from web.database import run_records
from web.database.tables import RunRecord
from web.requests.context import RequestContext, RequestContextDep
from web.requests.run_lookup import is_live
from web.rest.common import MAX_EXACT_INTEGER, PREFIX, Limit, ResponseModel, error_responses
from web.security.roles import Permission, needs

router = APIRouter(prefix=PREFIX, tags=["runs"])


class RunResponse(ResponseModel):
    """Recorded run."""

    id: int
    name: str
    recipe: str
    dataflow: str
    started_at: float = Field(description="Unix seconds.")
    last_at: float = Field(description="Unix seconds of its newest report.")
    last_sequence: int
    is_live: bool


class RunDetail(RunResponse):
    """Recorded run with its last report."""

    report: dict[str, Any] | None = Field(description="Last recorded report; null if it cannot be read.")


class RunList(ResponseModel):
    """Page of runs, newest first."""

    items: list[RunResponse]
    total: int
    page: int
    pages: int


@router.get("/runs", response_model=RunList, responses=error_responses())
@needs(Permission.READ)
async def runs(
    context: RequestContextDep,
    page: Annotated[int, Query(ge=1, le=1_000_000, description="Page number from 1; empty beyond the last.")] = 1,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Lists all runs, newest first."""
    records = await context.database.read(run_records.runs)
    return {
        "items": [_to_response(context, record) for record in records[(page - 1) * limit : page * limit]],
        "total": len(records),
        "page": page,
        "pages": max(1, -(-len(records) // limit)),
    }


@router.get("/runs/{run_id}", response_model=RunDetail, responses=error_responses(404))
@needs(Permission.READ)
async def get_run(
    context: RequestContextDep, run_id: Annotated[int, Path(ge=1, le=MAX_EXACT_INTEGER)]
) -> dict[str, Any]:
    """Returns a run with its last report."""
    record = await context.database.read(lambda session: run_records.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"cannot find run {run_id}: it was not recorded; list runs with GET {PREFIX}/runs")
    return _to_response(context, record) | {"report": _report(record)}


def _to_response(context: RequestContext, record: RunRecord) -> dict[str, Any]:
    return record.model_dump(exclude={"report_json", "folder"}) | {"is_live": is_live(context, record.id)}


def _report(record: RunRecord) -> dict[str, Any] | None:
    try:
        report = json.loads(record.report_json)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
