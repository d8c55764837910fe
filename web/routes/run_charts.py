"""`/runs/{run_id}/charts/{name}`: one chart of a run by itself, with its table and its files; of ended runs too."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from web.door.roles import Need, needs
from web.parts import PartsOf
from web.present.run_sheets import LABELS, run_sheet, run_table
from web.present.shell import shell
from web.reading.exports import Ending, sheet_answer
from web.reading.run_pages import RunNumber, showing
from web.reading.run_views import seen_of, span_from

router = APIRouter()

ChartName = Annotated[str, Path(max_length=40)]


@router.get("/runs/{run_id}/charts/{name}.{ending}")
@needs(Need.READ)
async def take(
    request: Request, parts: PartsOf, run_id: RunNumber, name: ChartName, ending: Ending, policy: str = ""
) -> Response:
    """What is drawn over the stretch of time that the address names, the whole run without one."""
    _known(name)
    view, past = await seen_of(showing(parts, run_id), run_id, policy, span=span_from(request.query_params))
    return sheet_answer(run_sheet(view, past, name), ending)


@router.get("/runs/{run_id}/charts/{name}")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, run_id: RunNumber, name: ChartName, policy: str = "") -> Response:
    """The chart, large, and its table."""
    _known(name)
    parts = showing(parts, run_id)
    view, past = await seen_of(parts, run_id, policy, span=span_from(request.query_params))
    heads, body = run_table(view, past, name)
    return parts.pages.page(
        request,
        "runs/chart.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        cells=parts.frames.cells if view.is_live else {},
        view=view,
        name=name,
        label=LABELS[name],
        heads=heads,
        rows=body,
    )


def _known(name: str) -> None:
    if name not in LABELS:
        raise HTTPException(404, f"A run has no chart of that name: its charts are {', '.join(LABELS)}.")
