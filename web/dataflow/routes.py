"""`/dataflow`: the path of groups as a diagram, filtered groups by reason, and active plugins."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from web.components.downloads import FileFormat, Sheet, sheet_response
from web.components.layout import layout
from web.components.live_sessions import live_sessions
from web.dataflow.views import COLUMNS, PERIODS, dataflow_sheet, dataflow_view
from web.requests.context import RequestContext, RequestContextDep
from web.security.roles import Permission, needs

router = APIRouter()


@router.get("/dataflow")
@needs(Permission.READ)
async def show(request: Request, context: RequestContextDep, over: str = "run") -> Response:
    """Shows the page."""
    return context.pages.page(
        request, "dataflow/page.html", page="dataflow", overs=PERIODS, **await _view(context, over)
    )


@router.get("/dataflow/live")
@needs(Permission.READ)
async def live(request: Request, context: RequestContextDep, over: str = "run") -> Response:
    """Returns the parts of the page that change, for the live page."""
    if context.state.report is None:
        return Response(status_code=204)
    return context.pages.page(request, "dataflow/_live.html", **await _view(context, over))


@router.get("/dataflow.{ending}")
@needs(Permission.READ)
async def export(context: RequestContextDep, ending: FileFormat) -> Response:
    """Returns the edges of the diagram as a file."""
    report = context.state.report
    if report is None:
        return sheet_response(Sheet(name="astraflow-dataflow", columns=COLUMNS, rows=()), ending)
    return sheet_response(dataflow_sheet(report, context.state.recent_counts.earliest), ending)


async def _view(context: RequestContext, over: str) -> dict[str, Any]:
    report = context.state.report
    view = None
    if report is not None:
        chosen = over if over in PERIODS else "run"
        view = dataflow_view(
            report, context.state.recent_counts.earliest, period=chosen, run_id=context.recorder.run_id
        )
    return {
        "layout": layout(context.state, context.settings),
        "view": view,
        "sessions": live_sessions(report.nodes if report else ()),
        "admins": await context.accounts.users.admins(),
    }
