"""`/charts/{name}`: one chart by itself, with the same numbers as a table."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from web.parts import PartsOf
from web.present import charts
from web.present.balance import balance
from web.present.overview import one_chart, rows_of, titles
from web.present.page_points import page_points
from web.present.scales import span_of
from web.present.series import as_table
from web.present.shell import chosen, shell
from web.roles import Need, needs
from web.spans import points_over

router = APIRouter()


@router.get("/charts/{name}")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, name: str) -> Response:
    """The chart, large, and its table."""
    report, choice = parts.state.report, chosen(parts.state, request.query_params)
    spec = charts.KNOWN.get(name)
    if spec is None:
        raise HTTPException(404)
    frame = shell(parts.state, parts.settings, path=f"/charts/{name}", choice=choice)
    if report is None or choice.policy is None:
        return parts.pages.page(request, "overview/waiting.html", page="overview", shell=frame)
    points = await points_over(parts, choice)
    rows, pins = rows_of(points, choice.policy), parts.state.pinned.pins
    heads, body = as_table(spec, rows)
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
        balance=balance(rows, span_of([at for at, _ in rows], choice.span), pins),
        heads=heads,
        rows=body,
    )
