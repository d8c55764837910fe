"""`/`: the run at a glance, and `/events/{ordinal}`: one thing that happened, with what was known then."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.lookups import EventQuery
from astraflow.contract.reports import Event
from web.accounts.viewer import Viewer
from web.door.roles import Need, needs
from web.history.spans import points_over
from web.parts import Parts, PartsOf, ViewerOf
from web.present.events import ABOUT
from web.present.happening import Happening, happening
from web.present.overview import overview, titles
from web.present.shell import chosen, shell
from web.reading.run_pages import pins_of

router = APIRouter()

LONGEST_ORDINAL = 16
"""Digits; what is longer is none."""


@router.get("/")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, viewer: ViewerOf, event: str = "") -> Response:
    """The overview, or what it waits for. event: the pin whose drawer is open."""
    report = parts.state.report
    choice = chosen(parts.state, request.query_params)
    frame = shell(parts.state, parts.settings, path="/", choice=choice)
    if report is None or choice.policy is None:
        return parts.pages.page(request, "overview/waiting.html", page="overview", shell=frame)
    points = await points_over(parts, choice)
    return parts.pages.page(
        request,
        "overview/page.html",
        page="overview",
        shell=frame,
        cells={**parts.frames.cells, **titles(report, points, choice)},
        view=overview(report, points, choice, await pins_of(parts)),
        open=await _happening(parts, int(event)) if event.isdecimal() and len(event) < LONGEST_ORDINAL else None,
        losable=_losable(parts, viewer),
        abouts=[(name, label) for name, (label, _) in ABOUT.items()],
    )


@router.get("/events/{ordinal}")
@needs(Need.READ)
async def show_event(request: Request, parts: PartsOf, ordinal: int) -> Response:
    """One event by itself."""
    found = await _happening(parts, ordinal)
    if found is None:
        raise HTTPException(404)
    return parts.pages.page(
        request, "overview/event.html", page="overview", shell=shell(parts.state, parts.settings), open=found
    )


def _losable(parts: Parts, viewer: Viewer) -> list[str]:
    """Pools of which nodes can be lost on the viewer's word: a simulated fault."""
    status = parts.fleet_state.status
    pools = [pool.spec.id for pool in status.pools if pool.can_lose] if status else []
    return [pool for pool in pools if viewer.may(Need.ADMINISTER, run=parts.run, pool=pool)]


async def _happening(parts: Parts, ordinal: int) -> Happening | None:
    event = await _event(parts, ordinal)
    if event is None:
        return None
    points = parts.state.series.window(float("inf"))
    return happening(event, parts.state.pinned.advice_of(event), points)


async def _event(parts: Parts, ordinal: int) -> Event | None:
    """Of the latest report, else from dataflow's archive. Raises: what asking dataflow raises."""
    latest = parts.state.report.events if parts.state.report else ()
    found = next((event for event in latest if event.ordinal == ordinal), None)
    if found is None and ordinal >= 0:
        page = await parts.control.events(EventQuery(before=ordinal + 1, limit=1))
        found = next((event for event in page.events if event.ordinal == ordinal), None)
    return found
