"""`/api/v1/runs`: the recorded runs."""

import json
from typing import Annotated, Any

from fastapi import Path
from fastapi.responses import HTMLResponse, Response
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.runtime.folders.run_metadata import LINE, MAX_NOTE, MAX_TAG, MAX_TAGS, MAX_TITLE, TAG, TEXT, RunMetadata
from web.database import run_records
from web.database.tables import MAX_ID, RunRecord
from web.history.run_summary import PolicyFigures, summary
from web.requests.dependencies import (
    AuditLogDep,
    ClockDep,
    CommandsDep,
    DatabaseDep,
    RunIndexDep,
    ShownRunDep,
    ViewerDep,
)
from web.requests.run_lookup import local_run, state_of
from web.rest.common import PREFIX, ApiRouter, Limit, NumberedPage, PageNumber, RequestBody, ResponseModel, as_tool
from web.rest.contract_models import fields_of
from web.runs.details import annotate, record_metadata
from web.runs.routes import export_response
from web.security.roles import Permission, ResourceKind, needs

router = ApiRouter(tags=["runs"])

RUN_TEXTS = ("title", "note", "tags", "group")
"""Fields of a run that people write."""


@fields_of(RunMetadata)
class MetadataResponse(ResponseModel):
    """Metadata of a run, which people edit."""

    tags: list[str] = Field(description="Tags in the order of their letters, each once.", examples=[["lr-sweep"]])


class MetadataRequest(RequestBody):
    """Changed metadata of a run; fields that are absent stay as they are."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "Higher rate", "tags": ["baseline", "lr-sweep"], "is_starred": True}]}
    )

    title: str = Field(default_factory=str, max_length=MAX_TITLE, pattern=LINE, description="Title in one line.")
    note: str = Field(default_factory=str, max_length=MAX_NOTE, pattern=TEXT, description="Note of several lines.")
    tags: list[Annotated[str, Field(min_length=1, max_length=MAX_TAG, pattern=TAG)]] = Field(
        default_factory=list, max_length=MAX_TAGS, description="All tags, without spaces and commas."
    )
    group: str = Field(
        default_factory=str, max_length=MAX_TITLE, pattern=LINE, description="Group of runs that belong together."
    )
    is_starred: bool = Field(default_factory=bool, description="Whether the run is marked as important.")


@fields_of(RunRecord, without=("report_json", "folder", "history_sequence", "metadata_json"))
class RunResponse(ResponseModel):
    """Recorded run."""

    id: int = Field(description="Number of the run.")
    is_live: bool = Field(description="Whether the web process receives its reports now.")
    metadata: MetadataResponse = Field(description="Title, note, tags, group and star.")


class RunDetail(RunResponse):
    """Recorded run with its last report."""

    report: dict[str, Any] | None = Field(description="Last recorded report; null if it cannot be read.")


@fields_of(PolicyFigures)
class PolicyFiguresResponse(ResponseModel):
    """Latest figures of a policy."""


class RunSummaryResponse(RunResponse):
    """Recorded run with the figures of its last report."""

    state: str = Field(description="live, starting, running, ended, or not connected.", examples=["live"])
    is_simulated: bool = Field(description="Whether parts of the run are simulated.")
    dollars: float | None = Field(description="Cost of its nodes over the recorded time; null while no price is known.")
    policies: list[PolicyFiguresResponse] = Field(description="Policies that are trained.")


class RunList(NumberedPage[RunResponse]):
    """Page of runs, newest first."""


@router.get("/runs", response_model=RunList, openapi_extra=as_tool("run_list", texts=RUN_TEXTS, names=("name",)))
@needs(Permission.READ)
async def runs(index: RunIndexDep, database: DatabaseDep, page: PageNumber = 1, limit: Limit = 100) -> dict[str, Any]:
    """Lists all runs, newest first."""
    records = await database.read(run_records.runs)
    page_fields = NumberedPage.cut(records, page, limit)
    local = {run.name: run for run in await index.launcher.launches()}
    items = [
        RunResponse.values_of(
            record, is_live=index.is_live(record.id), metadata=record_metadata(record, local.get(record.name))
        )
        for record in page_fields["items"]
    ]
    return page_fields | {"items": items}


@router.get("/runs/{run_id}", response_model=RunDetail)
@needs(Permission.READ)
async def get_run(
    index: RunIndexDep, database: DatabaseDep, run_id: Annotated[int, Path(ge=1, le=MAX_ID)]
) -> dict[str, Any]:
    """Returns a run with its last report."""
    record = await database.read(lambda session: run_records.run(session, run_id))
    if record is None:
        raise HTTPException(404, f"cannot find run {run_id}: it was not recorded; list runs with GET {PREFIX}/runs")
    metadata = record_metadata(record, await local_run(index.launcher, record))
    return RunDetail.values_of(record, is_live=index.is_live(record.id), metadata=metadata, report=_report(record))


@router.get(
    "/runs/{run_id}/summary",
    response_model=RunSummaryResponse,
    openapi_extra=as_tool("run_read", texts=RUN_TEXTS, names=("name",)),
)
@needs(Permission.READ)
async def get_summary(shown: ShownRunDep) -> dict[str, Any]:
    """Returns a run with the latest figures of its policies: steps, version, reward, waiting, metrics."""
    record = await shown.record()
    run = await shown.local(record)
    figures = await shown.database.read(lambda session: summary(session, record))
    return RunSummaryResponse.values_of(
        record,
        is_live=shown.is_live,
        metadata=record_metadata(record, run),
        state=state_of(run, folder=record.folder, is_heard=shown.is_live),
        is_simulated=figures.simulated,
        dollars=figures.dollars,
        policies=[PolicyFiguresResponse.values_of(policy) for policy in figures.policies],
    )


@router.patch("/runs/{run_id}/metadata", response_model=MetadataResponse)
@needs(Permission.OPERATE, on=ResourceKind.RECORD)
async def change_metadata(shown: ShownRunDep, commands: CommandsDep, body: MetadataRequest) -> RunMetadata:
    """Changes title, note, tags, group or star of a run, and returns all of them."""
    return await annotate(shown, commands, body.model_dump(exclude_unset=True))


@router.post(
    "/runs/{run_id}/export",
    response_class=HTMLResponse,
    responses={200: {"description": "The run as one file that opens without a network.", "content": {"text/html": {}}}},
    openapi_extra=as_tool("run_export", changes_nothing=True),
)
@needs(Permission.READ)
async def export_file(shown: ShownRunDep, audit_log: AuditLogDep, viewer: ViewerDep, clock: ClockDep) -> Response:
    """Returns the run as one HTML file: charts, samples, settings and events. The audit log gets its hash."""
    return await export_response(shown, audit_log, viewer, clock)


def _report(record: RunRecord) -> dict[str, Any] | None:
    try:
        report = json.loads(record.report_json)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
