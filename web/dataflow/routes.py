"""`/dataflow`: the path of groups as a diagram, filtered groups by reason, and active plugins."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from web.components.downloads import FileFormat, Sheet, sheet_response
from web.components.live_sessions import live_sessions
from web.dataflow.views import COLUMNS, PERIODS, dataflow_sheet, dataflow_view
from web.requests.dependencies import AdminsDep, PagesDep, RecorderDep, StateDep
from web.security.roles import Permission, needs

router = APIRouter()


async def _view(state: StateDep, recorder: RecorderDep, admins: AdminsDep, over: str = "run") -> dict[str, Any]:
    report, view = state.report, None
    if report is not None:
        chosen = over if over in PERIODS else "run"
        view = dataflow_view(report, state.recent_counts.earliest, period=chosen, run_id=recorder.run_id)
    return {"view": view, "sessions": live_sessions(report.nodes if report else ()), "admins": admins}


ViewDep = Annotated[dict[str, Any], Depends(_view)]


@router.get("/dataflow")
@needs(Permission.READ)
async def show(request: Request, pages: PagesDep, view: ViewDep) -> Response:
    """Shows the page."""
    return pages.page(request, "dataflow/page.html", page="dataflow", overs=PERIODS, **view)


@router.get("/dataflow/live")
@needs(Permission.READ)
async def live(request: Request, pages: PagesDep, view: ViewDep) -> Response:
    """Returns the parts of the page that change, for the live page."""
    if view["view"] is None:
        return Response(status_code=204)
    return pages.page(request, "dataflow/_live.html", **view)


@router.get("/dataflow.{ending}")
@needs(Permission.READ)
async def export(state: StateDep, ending: FileFormat) -> Response:
    """Returns the edges of the diagram as a file."""
    report = state.report
    if report is None:
        return sheet_response(Sheet(name="astraflow-dataflow", columns=COLUMNS, rows=()), ending)
    return sheet_response(dataflow_sheet(report, state.recent_counts.earliest), ending)
