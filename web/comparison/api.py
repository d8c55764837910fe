"""`/api/v1/comparison`, `/runs/N/evaluations`: comparison of runs, and evaluation rounds."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from astraflow.contract.errors import InvalidInput, Unavailable
from web.comparison import views
from web.comparison.queries import MAX_RUNS, MIN_RUNS, compared_runs, differences
from web.comparison.views import ComparisonAxis
from web.history.report_json import json_value
from web.requests.context import RequestContextDep
from web.requests.run_lookup import is_live, require_record, showing
from web.rest.common import MAX_EXACT_INTEGER, PREFIX, ResponseModel, error_responses
from web.security.roles import Permission, needs

router = APIRouter(prefix=PREFIX, tags=["runs"])

RunId = Annotated[
    int, Path(ge=1, le=MAX_EXACT_INTEGER, description="Id of the run, from the list of runs.", examples=[1])
]
Chosen = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_EXACT_INTEGER)]],
    Query(
        min_length=MIN_RUNS,
        max_length=MAX_RUNS,
        description="Two to four different runs: `run=1&run=2`.",
        json_schema_extra={"uniqueItems": True},
    ),
]


class ComparedRunResponse(ResponseModel):
    """Run in a comparison."""

    id: int
    name: str
    policy: str = Field(description="Compared policy; empty for a run without recorded policies.")
    has_settings: bool = Field(description="Whether its recipe is known.")


class SettingDifferenceResponse(ResponseModel):
    """Setting that differs between the recipes."""

    key: str
    values: list[str | None] = Field(description="Values in the order of the runs; null if a run lacks the setting.")


class RunComparisonResponse(ResponseModel):
    """Comparison of runs."""

    runs: list[ComparedRunResponse]
    differences: list[SettingDifferenceResponse]
    columns: list[str] = Field(
        description="Columns of `rows`: id, run, policy, `step` or `time`, and the measurements."
    )
    rows: list[list[float | str | None]]


class EvaluationScoreResponse(ResponseModel):
    """Score of one policy: mean over the prompts that have it."""

    policy: str
    name: str = Field(description="`avg@k`, `pass@1` to `pass@k`, `maj@k`.")
    value: float
    error: float | None = Field(description="Standard error of the mean; null for a single prompt.")


class EvaluationRoundResponse(ResponseModel):
    """Round of an evaluation: several samples of every prompt, with pinned versions."""

    flow: str = Field(description="Name of the evaluation.")
    round: int = Field(description="Round number from 1 across all evaluations of the run; 0 while it waits.")
    versions: dict[str, int] = Field(description="Pinned version by policy.")
    state: str = Field(description="`waiting`, `running`, `done` or `stopped`.")
    done: int = Field(description="Samples with a result.")
    total: int
    masked: int = Field(description="Samples without a score.")
    failed: int = Field(description="Prompts whose samples were all masked.")
    scores: list[EvaluationScoreResponse] = Field(description="Empty until the round has ended.")
    actor: str
    reason: str
    requested_at: float = Field(description="Unix seconds.")
    started_at: float | None
    finished_at: float | None
    reserved_nodes: list[str] = Field(description="Nodes whose only engine serves the round; they train nothing else.")


class EvaluationRoundList(ResponseModel):
    """Page of rounds, newest first."""

    items: list[EvaluationRoundResponse]
    older: int | None = Field(description="`before` of the next page; null on the last.")


@router.get("/comparison", response_model=RunComparisonResponse, responses=error_responses(404))
@needs(Permission.READ)
async def comparison(
    context: RequestContextDep,
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
    runs = await compared_runs(context, run, policy)
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
        "rows": json_value(sheet.rows),
    }


@router.get("/runs/{run_id}/evaluations", response_model=EvaluationRoundList, responses=error_responses(404))
@needs(Permission.READ)
async def evaluations(
    context: RequestContextDep,
    run_id: RunId,
    before: Annotated[
        int | None, Query(ge=1, le=MAX_EXACT_INTEGER, description="`older` of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of items.")] = 20,
) -> dict[str, Any]:
    """Lists evaluation rounds of a live run, newest first."""
    context = showing(context, run_id)
    record = await require_record(context, run_id)
    if not is_live(context, run_id):
        raise Unavailable(
            f"cannot list evaluations: run {record.name!r} is not connected; start or resume it",
            code="evaluation.run_not_connected",
        )
    rounds = await context.control.evaluations(before=before, limit=limit)
    older = rounds[-1].round if len(rounds) == limit and rounds[-1].round > 0 else None
    return {"items": [json_value(asdict(round_)) for round_ in rounds], "older": older}
