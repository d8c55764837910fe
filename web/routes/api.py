"""`/api`: the same numbers for programs. `/healthz`: is this process well."""

import json

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from astraflow.contract.errors import InvalidInput, Unavailable
from web.capacity import FLEET_VALUES
from web.exports import Ending, sheet_answer
from web.parts import PartsOf
from web.points import VALUES
from web.present import charts
from web.present.overview import rows_of
from web.present.series import as_sheet
from web.present.shell import chosen
from web.report_json import report_to_json
from web.roles import Need, needs
from web.spans import points_over

router = APIRouter()


@router.get("/healthz")
@needs(Need.NOTHING)
async def health(parts: PartsOf) -> Response:
    """Alive; and whether the feed is. Says nothing about the run: it needs no login."""
    age_s = parts.state.age_s
    return JSONResponse(
        {
            "status": "ok",
            "feed": parts.state.feed.state.value,
            "data_age_s": None if age_s is None else round(age_s, 2),
        }
    )


@router.get("/api/report")
@needs(Need.READ)
async def report(parts: PartsOf) -> Response:
    """The newest report, whole. `age_s` says how old it is."""
    if parts.state.report is None:
        raise Unavailable("no report has arrived from dataflow yet")
    content = json.loads(report_to_json(parts.state.report)) | {"age_s": parts.state.age_s}
    return JSONResponse(content)


@router.get("/api/session")
@needs(Need.READ)
async def session() -> Response:
    """Whether this browser is logged in: the guard answers 401 when it is not."""
    return JSONResponse({"status": "ok"})


@router.get("/api/series.{ending}")
@needs(Need.READ)
async def series(request: Request, parts: PartsOf, ending: Ending, chart: str = "") -> Response:
    """What a chart plots, as CSV or JSON; without `chart`, every value."""
    if chart and chart not in charts.KNOWN:
        raise InvalidInput(f"no chart is called {chart[:40]!r}; known: {', '.join(charts.KNOWN)}")
    choice = chosen(parts.state, request.query_params)
    if choice.policy is None:
        raise Unavailable("no report has arrived from dataflow yet")
    values = tuple(line.value for line in charts.KNOWN[chart].lines) if chart else (*VALUES, *FLEET_VALUES)
    points = await points_over(parts, choice)
    name = f"astraflow-{chart or 'series'}-{choice.policy}-{choice.range}".replace("/", "_").replace(":", "_")
    return sheet_answer(as_sheet(name, rows_of(points, choice.policy), values), ending)
