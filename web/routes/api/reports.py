"""`/api/v1/report`, `/reports` and `/series`: what dataflow measures."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import PolicyId
from web.parts import Parts, PartsOf
from web.points import VALUES
from web.present import charts
from web.present.overview import rows_of
from web.present.series import as_csv
from web.present.shell import Chosen, chosen
from web.report_json import plain, report_to_json
from web.roles import Need, needs
from web.routes.api.terms import LARGEST, PREFIX, Filled, refusals

router = APIRouter(prefix=PREFIX, tags=["reports"])

ChartName = Literal["", "reward", "rates", "wait", "buffer"]
RangeName = Literal["", "2m", "5m", "15m"]
MOST_REPORTS = 900

Chart = Annotated[ChartName, Query(description="What it plots; empty for every value.")]
Policy = Annotated[str, Query(max_length=128, description="The first, if empty or not known.")]
Range = Annotated[RangeName, Query(description="Back from now; empty for 5m.")]


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


class SeriesPoint(Filled):
    """One second of one policy."""

    model_config = ConfigDict(extra="allow")

    unix_s: float


class SeriesAnswer(Filled):
    """What a chart plots."""

    policy: str
    range_s: float
    points: list[SeriesPoint]


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
    "/series.csv",
    response_class=Response,
    responses={**refusals(), 200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
@needs(Need.READ)
async def series_csv(parts: PartsOf, chart: Chart = "", policy: Policy = "", range: Range = "") -> Response:  # noqa: A002 (the name in the address)
    """What a chart plots, as CSV; without `chart`, every value."""
    choice, values, rows = _series(parts, chart, policy, range)
    name = f"astraflow-{chart or 'series'}-{choice.policy}-{choice.range}.csv".replace("/", "_").replace(":", "_")
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(as_csv(rows, values), media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/series.json", response_model=SeriesAnswer, responses=refusals())
@needs(Need.READ)
async def series_json(parts: PartsOf, chart: Chart = "", policy: Policy = "", range: Range = "") -> Response:  # noqa: A002 (the name in the address)
    """The same as JSON."""
    choice, values, rows = _series(parts, chart, policy, range)
    points = [{"unix_s": at, **{name: numbers[name] for name in values}} for at, numbers in rows]
    return JSONResponse({"policy": choice.policy, "range_s": choice.range_s, "points": points})


def _series(parts: Parts, chart: str, policy: str, range_name: str) -> tuple[Chosen, tuple[str, ...], list[charts.Row]]:
    choice = chosen(parts.state, policy, range_name)
    if choice.policy is None:
        raise Unavailable("no report has arrived from dataflow yet")
    values = tuple(line.value for line in charts.CHARTS[chart].lines) if chart else VALUES
    return choice, values, rows_of(parts.state.series.window(choice.range_s), PolicyId(choice.policy))
