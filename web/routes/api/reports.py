"""`/api/v1/report`, `/reports` and `/series`: what dataflow measures."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from astraflow.contract.errors import Unavailable
from web.door.roles import Need, needs
from web.feed.capacity import FLEET_VALUES
from web.feed.report_json import plain, report_to_json
from web.history.points import VALUES
from web.history.spans import points_over
from web.parts import Parts, PartsOf
from web.present import charts
from web.present.ladder import lag_sheet
from web.present.overview import rows_of
from web.present.run_sheets import LABELS, run_sheet
from web.present.series import as_sheet
from web.present.shell import chosen
from web.reading.exports import Ending, Sheet, sheet_answer
from web.reading.run_pages import showing
from web.reading.run_views import seen_of, span_from
from web.routes.api.terms import LARGEST, PREFIX, Filled, refusals

router = APIRouter(prefix=PREFIX, tags=["reports"])

ChartName = Literal[
    "",
    "reward",
    "rates",
    "wait",
    "buffer",
    "balance",
    "ratio",
    "nodes",
    "price",
    "loss",
    "length",
    "kl",
    "timeline",
    "versions",
]
RangeName = Literal["", "15m", "1h", "6h", "24h"]
MOST_REPORTS = 900

Chart = Annotated[ChartName, Query(description="What it plots; empty for every value.")]
Policy = Annotated[str, Query(max_length=128, description="The first, if empty or not known.")]
Range = Annotated[RangeName, Query(description="Back from now; empty for 15m.")]
Begin = Annotated[str, Query(alias="from", max_length=40, description="Instead of a range: Unix seconds, or UTC.")]
OfRun = Annotated[
    int | None,
    Query(ge=1, le=LARGEST, description="A run of the list, over or not, whole without a range; else the one shown."),
]
End = Annotated[str, Query(alias="to", max_length=40, description="Its end; both or neither.")]


class RunReport(Filled):
    """The run at one second. Tables as `astraflow report --json` has them."""

    model_config = ConfigDict(extra="allow")

    run: str
    sequence: int = Field(description="Grows by one a second, over restarts too.")
    at: float = Field(description="Unix seconds.")
    uptime_s: float
    simulated: list[str] = Field(description="Stand-ins that take part.")
    flows: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    pools: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    events: list[dict[str, Any]]
    advice: list[dict[str, Any]]
    troubles: list[str]


class NewestReport(RunReport):
    """The newest one."""

    age_s: float | None = Field(description="Seconds since it arrived.")


class ReportList(Filled):
    """Reports, oldest first."""

    items: list[RunReport]


class SessionAnswer(Filled):
    """That a login or a token is good."""

    status: Literal["ok"]


@router.get("/report", response_model=NewestReport, responses=refusals())
@needs(Need.READ)
async def report(parts: PartsOf) -> Response:
    """The newest report, whole. `age_s` says how old it is."""
    if parts.state.report is None:
        raise Unavailable("no report has arrived from dataflow yet")
    content = json.loads(report_to_json(parts.state.report)) | {"age_s": parts.state.age_s}
    return JSONResponse(content)


@router.get("/reports", response_model=ReportList, responses=refusals())
@needs(Need.READ)
async def reports(
    parts: PartsOf,
    after_sequence: Annotated[int, Query(ge=0, le=LARGEST, description="Those that are newer.")] = 0,
    resolution_s: Annotated[Literal["1", "60"], Query(description="Each second of 15 minutes, or each minute.")] = "60",
    limit: Annotated[int, Query(ge=1, le=MOST_REPORTS, description="Of the latest.")] = 60,
) -> Response:
    """The history of the run, oldest first. Nodes' errors and events are left out."""
    found = await parts.control.history(after_sequence=after_sequence, limit=limit, resolution_s=int(resolution_s))
    return JSONResponse({"items": [plain(asdict(one)) for one in found]})


@router.get("/session", response_model=SessionAnswer, responses=refusals())
@needs(Need.READ)
async def session() -> Response:
    """Whether this login or token is good."""
    return JSONResponse({"status": "ok"})


@router.get(
    "/series.{ending}",
    response_class=Response,
    responses={
        **refusals(404),
        200: {
            "content": {
                "text/csv": {"schema": {"type": "string"}},
                "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
            }
        },
    },
)
@needs(Need.READ)
async def series(
    request: Request,
    parts: PartsOf,
    ending: Ending,
    chart: Chart = "",
    policy: Policy = "",
    range: Range = "",  # noqa: A002 (the name in the address)
    begin: Begin = "",
    end: End = "",
    run_id: OfRun = None,
) -> Response:
    """What a chart plots, as CSV or JSON: a row for each time; without `chart`, every value."""
    if run_id is not None:
        return sheet_answer(await _of_run(request, parts, run_id, policy, chart), ending)
    if chart and chart not in (*charts.KNOWN, charts.LADDER):
        raise HTTPException(404, f"{chart} is a chart of one run: name it with run_id, as /api/v1/runs lists it")
    choice = chosen(parts.state, request.query_params)
    if choice.policy is None:
        raise Unavailable("no report has arrived from dataflow yet")
    points = await points_over(parts, choice)
    if chart == charts.LADDER:
        return sheet_answer(lag_sheet(points, choice.policy), ending)
    values = tuple(line.value for line in charts.KNOWN[chart].lines) if chart else (*VALUES, *FLEET_VALUES)
    name = f"astraflow-{chart or 'series'}-{choice.policy}-{choice.range}".replace("/", "_").replace(":", "_")
    return sheet_answer(as_sheet(name, rows_of(points, choice.policy), values), ending)


async def _of_run(request: Request, parts: Parts, run_id: int, policy: str, chart: str) -> Sheet:
    """Raises: HTTPException for a chart that runs do not have and for a run that was never recorded."""
    if chart and chart not in LABELS:
        raise HTTPException(404, f"a run has no chart {chart}: its charts are {', '.join(LABELS)}")
    view, past = await seen_of(showing(parts, run_id), run_id, policy, span=span_from(request.query_params))
    return run_sheet(view, past, chart) if chart else as_sheet(f"astraflow-run-{run_id}", past.rows, VALUES)
