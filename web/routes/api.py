"""`/api`: the same numbers for programs. `/healthz`: is this process well."""

import json

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PolicyId
from web.parts import Parts, PartsOf
from web.points import VALUES
from web.present import charts
from web.present.overview import rows_of
from web.present.series import as_csv
from web.present.shell import Chosen, chosen
from web.report_json import report_to_json
from web.roles import Need, needs

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


@router.get("/api/series.csv")
@needs(Need.READ)
async def series_csv(parts: PartsOf, chart: str = "", policy: str = "", range: str = "") -> Response:  # noqa: A002 (the name in the address)
    """What a chart plots, as CSV; without `chart`, every value."""
    choice, values, rows = _series(parts, chart, policy, range)
    name = f"astraflow-{chart or 'series'}-{choice.policy}-{choice.range}.csv".replace("/", "_").replace(":", "_")
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(as_csv(rows, values), media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/api/series.json")
@needs(Need.READ)
async def series_json(parts: PartsOf, chart: str = "", policy: str = "", range: str = "") -> Response:  # noqa: A002 (the name in the address)
    """The same as JSON."""
    choice, values, rows = _series(parts, chart, policy, range)
    points = [{"unix_s": at, **{name: numbers[name] for name in values}} for at, numbers in rows]
    return JSONResponse({"policy": choice.policy, "range_s": choice.range_s, "points": points})


def _series(parts: Parts, chart: str, policy: str, range_name: str) -> tuple[Chosen, tuple[str, ...], list[charts.Row]]:
    if chart and chart not in charts.CHARTS:
        raise InvalidInput(f"no chart is called {chart[:40]!r}; known: {', '.join(charts.CHARTS)}")
    choice = chosen(parts.state, policy, range_name)
    if choice.policy is None:
        raise Unavailable("no report has arrived from dataflow yet")
    values = tuple(line.value for line in charts.CHARTS[chart].lines) if chart else VALUES
    return choice, values, rows_of(parts.state.series.window(choice.range_s), PolicyId(choice.policy))
