"""`/api/v1/comparison`, `/runs/N/evaluations`: comparison of runs, and evaluation rounds."""

from typing import Annotated, Any

from fastapi import Query
from pydantic import ConfigDict, Field

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationReport
from web.comparison import views
from web.comparison.queries import MAX_RUNS, MIN_RUNS, compared_runs, differences
from web.comparison.views import ComparisonAxis
from web.database.tables import MAX_ID
from web.requests.dependencies import CommandsDep, RunIndexDep, ShownRunDep
from web.requests.run_lookup import ShownRun
from web.rest.common import (
    MAX_EXACT_INTEGER,
    NAME,
    ApiRouter,
    ItemList,
    Key,
    MessageResponse,
    Reason,
    RequestBody,
    ResponseModel,
    as_tool,
    error_responses,
)
from web.rest.contract_models import fields_of
from web.security.audit_log import AuditedCommand
from web.security.roles import Permission, ResourceKind, needs

router = ApiRouter(tags=["runs"])

Chosen = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_ID)]],
    Query(
        min_length=MIN_RUNS,
        max_length=MAX_RUNS,
        description="Two to four different runs: `run=1&run=2`.",
        json_schema_extra={"uniqueItems": True},
    ),
]


class ComparedRunResponse(ResponseModel):
    """Run in a comparison."""

    id: int = Field(description="Number of the run.")
    name: str = Field(description="Name of the run.")
    policy: str = Field(description="Compared policy; empty for a run without recorded policies.")
    has_settings: bool = Field(description="Whether its recipe is known.")


class SettingDifferenceResponse(ResponseModel):
    """Setting that differs between the recipes."""

    key: str = Field(description="Key of the setting.")
    values: list[str | None] = Field(description="Values in the order of the runs; null if a run lacks the setting.")


class RunComparisonResponse(ResponseModel):
    """Comparison of runs."""

    runs: list[ComparedRunResponse] = Field(description="Runs in the order of the request.")
    differences: list[SettingDifferenceResponse] = Field(description="Settings that differ.")
    columns: list[str] = Field(
        description="Columns of `rows`: id, run, policy, `step` or `time`, and the measurements."
    )
    rows: list[list[float | str | None]] = Field(description="Rows of the measurements.")


@fields_of(EvaluationReport)
class EvaluationRoundResponse(ResponseModel):
    """Round of an evaluation: several samples of every prompt, with pinned versions."""


class EvaluationRoundList(ItemList[EvaluationRoundResponse]):
    """Page of rounds, newest first."""

    older: int | None = Field(description="`before` of the next page; null on the last.")


class EvaluateRequest(RequestBody):
    """Round of an evaluation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"flow": "test", "reason": "before a change"}]})

    flow: str = Field(min_length=1, max_length=128, pattern=NAME, description="Name of the evaluation.")
    versions: dict[Annotated[str, Field(max_length=128, pattern=NAME)], Annotated[int, Field(ge=0, le=MAX_ID)]] = Field(
        default_factory=dict, max_length=32, description="Version by policy; the newest for every other policy."
    )
    reason: Reason


@router.get(
    "/comparison",
    response_model=RunComparisonResponse,
    responses=error_responses(404),
    openapi_extra=as_tool("run_compare", names=("name",)),
)
@needs(Permission.READ)
async def comparison(
    index: RunIndexDep,
    run: Chosen,
    policy: Annotated[
        str, Query(max_length=200, description="Policy to compare; empty for the first of each run.")
    ] = "",
    by: Annotated[ComparisonAxis, Query(description="Horizontal axis that aligns the runs.")] = "step",
) -> dict[str, Any]:
    """Compares two to four runs: measurements, and the settings that differ."""
    if len(set(run)) < len(run):
        raise InvalidInput(
            "cannot compare runs: a run is named twice; send each id once", code="comparison.repeated_run"
        )
    runs = await compared_runs(index, run, policy)
    sheet = views.sheet(runs, by=by)
    return {
        "runs": [
            {
                "id": compared.record.id,
                "name": compared.record.name,
                "policy": compared.policy,
                "has_settings": compared.settings is not None,
            }
            for compared in runs
        ],
        "differences": [{"key": key, "values": values} for key, values in differences(runs)],
        "columns": list(sheet.columns),
        "rows": sheet.rows,
    }


@router.get(
    "/runs/{run_id}/evaluations",
    response_model=EvaluationRoundList,
    openapi_extra=as_tool("run_evaluations", texts=("reason", "actor")),
)
@needs(Permission.READ)
async def evaluations(
    shown: ShownRunDep,
    before: Annotated[
        int | None, Query(ge=1, le=MAX_EXACT_INTEGER, description="`older` of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of items.")] = 20,
) -> dict[str, Any]:
    """Lists evaluation rounds of a live run, newest first."""
    control = await _connected_control(shown)
    rounds = await control.evaluations(before=before, limit=limit)
    older = rounds[-1].round if len(rounds) == limit and rounds[-1].round > 0 else None
    return {"items": rounds, "older": older}


@router.post(
    "/runs/{run_id}/evaluations",
    status_code=202,
    response_model=MessageResponse,
    openapi_extra=as_tool("run_evaluate"),
)
@needs(Permission.OPERATE, on=ResourceKind.RECORD)
async def evaluate(shown: ShownRunDep, commands: CommandsDep, body: EvaluateRequest, key: Key) -> dict[str, str]:
    """Begins a round of an evaluation of a live run, with its newest weights or the named versions.

    Returns 409 for an unknown evaluation or version, and while a round of it runs.
    """
    control = await _connected_control(shown)
    commands.check_kill_switch()
    versions = {PolicyId.unchecked(policy): Version(version) for policy, version in body.versions.items()}
    command = AuditedCommand(action="evaluation.begin", target=body.flow, reason=body.reason, after=body.versions)

    async def begin() -> str:
        begun = await control.evaluate(
            FlowId.unchecked(body.flow), versions, actor=commands.viewer.name, reason=body.reason
        )
        return f"round {begun.round} of the evaluation {begun.flow} has begun"

    return {"message": await commands.audited_once(command, begin, key=key, request=("evaluate", shown.id, body))}


async def _connected_control(shown: ShownRun) -> ControlPlaneClient:
    """Returns the client of a live run. Raises: Unavailable for any other."""
    record = await shown.record()
    if not shown.is_live:
        raise Unavailable(
            f"cannot use the evaluations of {record.name!r}: the run is not connected; start or resume it",
            code="evaluation.run_not_connected",
        )
    return shown.run.control
