"""`/charts/{name}`: one chart with its values as a table."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.reports.report import Report
from web.charts import charts
from web.charts.chart_data import chart_data, rows_of
from web.charts.scales import span_of
from web.charts.series import as_table
from web.charts.version_lag import lag_table
from web.components.layout import PageSelection, page_selection
from web.components.live_texts import LiveText
from web.components.rendering import PageRenderer
from web.history.points import Point
from web.overview.balance import balance, published_versions
from web.overview.views import chart_titles, draw_chart, overview
from web.requests.dependencies import HistoryDep, LiveTextsDep, PagesDep, StateDep
from web.requests.range_points import points_in_range
from web.security.roles import Permission, needs
from web.state.run_state import RunState

router = APIRouter()


@router.get("/charts/{name}")
@needs(Permission.READ)
async def show(
    request: Request, pages: PagesDep, state: StateDep, history: HistoryDep, live_texts: LiveTextsDep, name: str
) -> Response:
    """Shows the chart in full width with its table."""
    report, choice = state.report, page_selection(state, request.query_params)
    spec = charts.ALL_CHARTS.get(name)
    if spec is None and name != charts.VERSION_LAG:
        raise HTTPException(404)
    frame = pages.layout(path=f"/charts/{name}", choice=choice)
    if report is None or choice.policy is None:
        return pages.page(request, "overview/waiting.html", page="overview", layout=frame)
    points = await points_in_range(history, choice)
    if spec is None:
        return _version_lag_page(request, pages, state, live_texts, report, points, choice)
    rows, annotations = rows_of(points, choice.policy), state.annotation_log.annotations
    heads, body = as_table(spec, rows)
    window = span_of([at for at, _ in rows], choice.span)
    return pages.page(
        request,
        "overview/chart.html",
        page="overview",
        layout=frame,
        live_texts={**live_texts, **chart_titles(report, points, choice)},
        spec=spec,
        choice=choice,
        points=chart_data(
            choice.policy,
            rows,
            [spec],
            sequences=[point.sequence for point in points if choice.policy in point.policies],
            annotations=annotations,
            is_moving=choice.span.is_moving,
        ),
        drawing=draw_chart(report, points, choice, name) if name in charts.LINE_CHARTS else None,
        balance=balance(rows, window, annotations),
        published_versions=published_versions(rows, window) if name == charts.BALANCE.name else None,
        listed={
            version.version
            for weights in report.weights
            if weights.policy == choice.policy
            for version in weights.versions
        },
        heads=heads,
        rows=body,
    )


def _version_lag_page(
    request: Request,
    pages: PageRenderer,
    state: RunState,
    live_texts: Mapping[str, LiveText],
    report: Report,
    points: Sequence[Point],
    choice: PageSelection,
) -> Response:
    """Shows the version lag chart: the version that each node served over time."""
    heads, body = lag_table(points, choice.policy or "")
    return pages.page(
        request,
        "overview/versions.html",
        page="overview",
        layout=pages.layout(path=f"/charts/{charts.VERSION_LAG}", choice=choice),
        live_texts={**live_texts, **chart_titles(report, points, choice)},
        choice=choice,
        view=overview(report, points, choice, state.annotation_log.annotations),
        heads=heads,
        rows=body,
    )
