"""`/dataflow`: the path of groups as a diagram, what is filtered and why, plug-ins in force."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from web.door.roles import Need, needs
from web.parts import Parts, PartsOf
from web.present.dataflow import COLUMNS, OVERS, dataflow_sheet, dataflow_view
from web.present.shell import shell
from web.reading.exports import Ending, Sheet, sheet_answer

router = APIRouter()


@router.get("/dataflow")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, over: str = "run") -> Response:
    """The page."""
    return parts.pages.page(request, "dataflow/page.html", page="dataflow", overs=OVERS, **await _view(parts, over))


@router.get("/dataflow/live")
@needs(Need.READ)
async def live(request: Request, parts: PartsOf, over: str = "run") -> Response:
    """What changes of it, for the live page."""
    if parts.state.report is None:
        return Response(status_code=204)
    return parts.pages.page(request, "dataflow/_live.html", **await _view(parts, over))


@router.get("/dataflow.{ending}")
@needs(Need.READ)
async def take(parts: PartsOf, ending: Ending) -> Response:
    """The arrows as a file."""
    report = parts.state.report
    if report is None:
        return sheet_answer(Sheet(name="astraflow-dataflow", columns=COLUMNS, rows=()), ending)
    return sheet_answer(dataflow_sheet(report, parts.state.recent.earliest), ending)


async def _view(parts: Parts, over: str) -> dict[str, Any]:
    report = parts.state.report
    view = None
    if report is not None:
        chosen = over if over in OVERS else "run"
        view = dataflow_view(report, parts.state.recent.earliest, over=chosen, run_id=parts.recorder.run_id)
    return {
        "shell": shell(parts.state, parts.settings),
        "view": view,
        "admins": await parts.accounts.users.admins(),
    }
