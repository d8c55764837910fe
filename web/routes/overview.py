"""`/`: the run at a glance."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from web.parts import PartsOf
from web.present.overview import overview
from web.present.shell import chosen, shell
from web.roles import Need, needs

router = APIRouter()


@router.get("/")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, policy: str = "", range: str = "") -> Response:  # noqa: A002 (the name in the address)
    """The overview, or what it waits for."""
    report = parts.state.report
    choice = chosen(parts.state, policy, range)
    frame = shell(parts.state, parts.settings, path="/", choice=choice)
    if report is None or choice.policy is None:
        return parts.pages.page(request, "overview/waiting.html", page="overview", shell=frame)
    return parts.pages.page(
        request,
        "overview/page.html",
        page="overview",
        shell=frame,
        cells=parts.frames.cells,
        view=overview(report, parts.state.series, choice),
    )


@router.get("/overview/nodes")
@needs(Need.READ)
async def nodes(request: Request, parts: PartsOf, policy: str = "") -> Response:
    """The rows of the node table, for when nodes come and go."""
    report = parts.state.report
    choice = chosen(parts.state, policy, "")
    if report is None or choice.policy is None:
        return Response(status_code=204)
    view = overview(report, parts.state.series, choice)
    return parts.pages.page(request, "overview/_nodes.html", cells=parts.frames.cells, view=view)
