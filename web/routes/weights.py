"""`/weights`: versions, what they cost to publish and to bring, and who is behind."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from web.door.roles import Need, needs
from web.parts import PartsOf
from web.present.shell import shell
from web.present.weight_page import PHASES, weight_page
from web.present.weight_tables import TableName, weight_sheet
from web.reading import again
from web.reading.exports import Ending, sheet_answer

router = APIRouter()


@router.get("/weights")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """The tables."""
    return parts.pages.page(
        request,
        "weights/page.html",
        page="weights",
        shell=shell(parts.state, parts.settings),
        cells=parts.frames.cells,
        view=weight_page(parts.state.report),
        phases=PHASES,
    )


@router.get("/weights/tables")
@needs(Need.READ)
async def tables(request: Request, parts: PartsOf) -> Response:
    """The same tables alone, for when there is something new."""
    part = parts.pages.page(request, "weights/_tables.html", view=weight_page(parts.state.report), phases=PHASES)
    return again.answered(request, part)


@router.get("/weights/{table}.{ending}")
@needs(Need.READ)
async def take(parts: PartsOf, table: TableName, ending: Ending) -> Response:
    """One of the tables as a file."""
    return sheet_answer(weight_sheet(parts.state.report, table), ending)
