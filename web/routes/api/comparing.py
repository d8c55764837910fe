"""`/api/v1/comparison`, `/runs/N/evaluations`: how runs do beside each other, and how good their versions are."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from astraflow.contract.errors import InvalidInput, Unavailable
from web.door.roles import Need, needs
from web.feed.report_json import plain
from web.parts import PartsOf
from web.present import comparing
from web.present.comparing import By
from web.reading.comparing import FEWEST, MOST, compared, differences
from web.reading.run_pages import is_live, record_of, showing
from web.routes.api.terms import LARGEST, PREFIX, Filled, refusals

router = APIRouter(prefix=PREFIX, tags=["runs"])

RunId = Annotated[int, Path(ge=1, le=LARGEST, description="As the list of runs has it.", examples=[1])]
Chosen = Annotated[
    list[Annotated[int, Field(ge=1, le=LARGEST)]],
    Query(
        min_length=FEWEST,
        max_length=MOST,
        description="Two to four different runs: `run=1&run=2`.",
        json_schema_extra={"uniqueItems": True},
    ),
]


class ComparedAnswer(Filled):
    """One of the runs."""

    id: int
    name: str
    policy: str = Field(description="The one that is compared; empty for a run of which none was recorded.")
    has_settings: bool = Field(description="Whether its recipe is known.")


class DifferenceAnswer(Filled):
    """A setting in which their recipes differ."""

    key: str
    values: list[str | None] = Field(description="In the order of the runs; null where one has none of the kind.")


class ComparisonAnswer(Filled):
    """Runs beside each other."""

    runs: list[ComparedAnswer]
    differences: list[DifferenceAnswer]
    columns: list[str] = Field(description="Of `rows`: id, run, policy, `step` or `time`, and what is measured.")
    rows: list[list[float | str | None]]


class ScoreAnswer(Filled):
    """One figure of one policy: the mean over the prompts that have it."""

    policy: str
    name: str = Field(description="`avg@k`, `pass@1` to `pass@k`, `maj@k`.")
    value: float
    error: float | None = Field(description="Standard error of the mean; null for a single prompt.")


class RoundAnswer(Filled):
    """Every prompt of an evaluation, a few times, with pinned versions."""

    flow: str = Field(description="Name of the evaluation.")
    round: int = Field(description="Grows over all evaluations of the run, from 1; 0 while it waits.")
    versions: dict[str, int] = Field(description="By policy.")
    state: str = Field(description="`waiting`, `running`, `done` or `stopped`.")
    done: int = Field(description="Samples with a result.")
    total: int
    masked: int = Field(description="Samples without a score.")
    failed: int = Field(description="Prompts of which every sample was masked.")
    scores: list[ScoreAnswer] = Field(description="Empty until the round has ended.")
    actor: str
    reason: str
    asked_at: float = Field(description="Unix seconds.")
    started_at: float | None
    finished_at: float | None


class RoundList(Filled):
    """A page, newest first."""

    items: list[RoundAnswer]
    older: int | None = Field(description="`before` of the next page; null on the last.")


@router.get("/comparison", response_model=ComparisonAnswer, responses=refusals(404))
@needs(Need.READ)
async def comparison(
    parts: PartsOf,
    run: Chosen,
    policy: Annotated[str, Query(max_length=200, description="Empty for the first of each run.")] = "",
    by: Annotated[By, Query(description="What the runs are laid over each other by.")] = "step",
) -> dict[str, Any]:
    """Two to four runs beside each other: what is measured, and the settings in which they differ."""
    if len(set(run)) < len(run):
        raise InvalidInput("a run is compared with others: name each once")
    many = await compared(parts, run, policy)
    sheet = comparing.sheet(many, by=by)
    return {
        "runs": [
            {
                "id": one.record.id,
                "name": one.record.name,
                "policy": one.policy,
                "has_settings": one.settings is not None,
            }
            for one in many
        ],
        "differences": [{"key": key, "values": values} for key, values in differences(many)],
        "columns": list(sheet.columns),
        "rows": plain(sheet.rows),
    }


@router.get("/runs/{run_id}/evaluations", response_model=RoundList, responses=refusals(404))
@needs(Need.READ)
async def evaluations(
    parts: PartsOf,
    run_id: RunId,
    before: Annotated[int | None, Query(ge=1, le=LARGEST, description="`older` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="At most so many.")] = 20,
) -> dict[str, Any]:
    """Rounds of evaluations of a run that goes on, newest first."""
    parts = showing(parts, run_id)
    record = await record_of(parts, run_id)
    if not is_live(parts, run_id):
        raise Unavailable(f"the run {record.name} is not connected, and its evaluations are with it")
    rounds = await parts.control.evaluations(before=before, limit=limit)
    older = rounds[-1].round if len(rounds) == limit and rounds[-1].round > 0 else None
    return {"items": [plain(asdict(one)) for one in rounds], "older": older}
