"""`/api/v1/runs`: the recorded runs."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.exceptions import HTTPException

from web.database import run_records
from web.database.tables import MAX_ID, RunRecord
from web.requests.dependencies import DatabaseDep, RunIndexDep
from web.rest.common import PREFIX, Limit, NumberedPage, PageNumber, ResponseModel, error_responses
from web.rest.contract_models import fields_of
from web.security.roles import Permission, needs

router = APIRouter(prefix=PREFIX, tags=["runs"])


@fields_of(RunRecord, without=("report_json", "folder", "history_sequence", "metadata_json"))
class RunResponse(ResponseModel):
    """Recorded run."""

    id: int = Field(description="Number of the run.")
    is_live: bool = Field(description="Whether the web process receives its reports now.")


class RunDetail(RunResponse):
    """Recorded run with its last report."""

    report: dict[str, Any] | None = Field(description="Last recorded report; null if it cannot be read.")


class RunList(NumberedPage[RunResponse]):
    """Page of runs, newest first."""


@router.get("/runs", response_model=RunList, responses=error_responses())
@needs(Permission.READ)
async def runs(index: RunIndexDep, database: DatabaseDep, page: PageNumber = 1, limit: Limit = 100) -> dict[str, Any]:
    """Lists all runs, newest first."""
    records = await database.read(run_records.runs)
    page_fields = NumberedPage.cut(records, page, limit)
    items = [RunResponse.values_of(record, is_live=index.is_live(record.id)) for record in page_fields["items"]]
    return page_fields | {"items": items}


@router.get("/runs/{run_id}", response_model=RunDetail, responses=error_responses(404))
@needs(Permission.READ)
async def get_run(
    index: RunIndexDep, database: DatabaseDep, run_id: Annotated[int, Path(ge=1, le=MAX_ID)]
) -> dict[str, Any]:
    """Returns a run with its last report."""
    record = await database.read(lambda session: run_records.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"cannot find run {run_id}: it was not recorded; list runs with GET {PREFIX}/runs")
    return RunDetail.values_of(record, is_live=index.is_live(record.id), report=_report(record))


def _report(record: RunRecord) -> dict[str, Any] | None:
    try:
        report = json.loads(record.report_json)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
