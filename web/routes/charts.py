"""`/charts/{name}`: one chart by itself, with the same numbers as a table."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.reports import Report
from web.door.roles import Need, needs
from web.history.points import Point
from web.history.spans import points_over
from web.parts import Parts, PartsOf
from web.present import charts
from web.present.balance import balance, publishes
from web.present.ladder import lag_table
from web.present.overview import one_chart, overview, rows_of, titles
from web.present.page_points import page_points
from web.present.scales import span_of
from web.present.series import as_table
from web.present.shell import Chosen, chosen, shell

router = APIRouter()


@router.get("/charts/{name}")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, name: str) -> Response:
    """The chart, large, and its table."""
    report, choice = parts.state.report, chosen(parts.state, request.query_params)
    spec = charts.KNOWN.get(name)
    if spec is None and name != charts.LADDER:
        raise HTTPException(404)
    frame = shell(parts.state, parts.settings, path=f"/charts/{name}", choice=choice)
    if report is None or choice.policy is None:
        return parts.pages.page(request, "overview/waiting.html", page="overview", shell=frame)
    points = await points_over(parts, choice)
    if spec is None:
        return _ladder(request, parts, report, points, choice)
    rows, pins = rows_of(points, choice.policy), parts.state.pinned.pins
    heads, body = as_table(spec, rows)
    window = span_of([at for at, _ in rows], choice.span)
    return parts.pages.page(
        request,
        "charts/page.html",
        page="overview",
        shell=frame,
        cells={**parts.frames.cells, **titles(report, points, choice)},
        spec=spec,
        choice=choice,
        points=page_points(
            choice.policy,
            rows,
            [spec],
            sequences=[point.sequence for point in points if choice.policy in point.policies],
            pins=pins,
            is_moving=choice.span.is_moving,
        ),
        drawing=one_chart(report, points, choice, name) if name in charts.LINED else None,
        balance=balance(rows, window, pins),
        publishes=publishes(rows, window) if name == charts.BALANCE.name else None,
        listed={one.version for told in report.weights if told.policy == choice.policy for one in told.versions},
        heads=heads,
        rows=body,
    )


def _ladder(request: Request, parts: Parts, report: Report, points: Sequence[Point], choice: Chosen) -> Response:
    """Which node served which version."""
    heads, body = lag_table(points, choice.policy or "")
    return parts.pages.page(
        request,
        "charts/versions.html",
        page="overview",
        shell=shell(parts.state, parts.settings, path=f"/charts/{charts.LADDER}", choice=choice),
        cells={**parts.frames.cells, **titles(report, points, choice)},
        choice=choice,
        view=overview(report, points, choice, parts.state.pinned.pins),
        heads=heads,
        rows=body,
    )
