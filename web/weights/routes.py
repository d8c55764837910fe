"""`/weights`: versions, the cost of publishing and fetching them, and lagging nodes."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from web.components.downloads import FileFormat, sheet_response
from web.requests import responses
from web.requests.dependencies import LiveTextsDep, PagesDep, StateDep
from web.security.roles import Permission, needs
from web.weights.tables import TableName, weight_sheet
from web.weights.views import PHASES, weight_page

router = APIRouter()


@router.get("/weights")
@needs(Permission.READ)
async def show(request: Request, pages: PagesDep, state: StateDep, live_texts: LiveTextsDep) -> Response:
    """Shows the tables."""
    return pages.page(
        request,
        "weights/page.html",
        page="weights",
        live_texts=live_texts,
        view=weight_page(state.report),
        phases=PHASES,
    )


@router.get("/weights/tables")
@needs(Permission.READ)
async def tables(request: Request, pages: PagesDep, state: StateDep) -> Response:
    """Returns the tables as a fragment, for the live page."""
    fragment = pages.page(request, "weights/_tables.html", view=weight_page(state.report), phases=PHASES)
    return responses.with_etag(request, fragment)


@router.get("/weights/{table}.{ending}")
@needs(Permission.READ)
async def export(state: StateDep, table: TableName, ending: FileFormat) -> Response:
    """Returns one of the tables as a file."""
    return sheet_response(weight_sheet(state.report, table), ending)
