"""`/`: overview of the run. `/events/{ordinal}`: one event with the state at its time."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import Event
from web.accounts.viewer import Viewer
from web.components.events import EVENT_TOPICS
from web.components.layout import layout, page_selection
from web.events.details import EventDetails, event_details
from web.overview.views import chart_titles, overview
from web.requests.context import RequestContext, RequestContextDep, ViewerDep
from web.requests.range_points import points_in_range
from web.requests.run_lookup import annotations_of
from web.security.roles import Permission, needs

router = APIRouter()

MAX_ORDINAL_DIGITS = 16
"""Longest accepted event ordinal. Digits."""


@router.get("/")
@needs(Permission.READ)
async def show(request: Request, context: RequestContextDep, viewer: ViewerDep, event: str = "") -> Response:
    """Shows the overview, or the waiting page before the first report. event: ordinal of the event in the drawer."""
    report = context.state.report
    choice = page_selection(context.state, request.query_params)
    frame = layout(context.state, context.settings, path="/", choice=choice)
    if report is None or choice.policy is None:
        return context.pages.page(request, "overview/waiting.html", page="overview", layout=frame)
    points = await points_in_range(context, choice)
    return context.pages.page(
        request,
        "overview/page.html",
        page="overview",
        layout=frame,
        live_texts={**context.frames.live_texts, **chart_titles(report, points, choice)},
        view=overview(report, points, choice, await annotations_of(context)),
        open=await _event_detail(context, int(event))
        if event.isdecimal() and len(event) < MAX_ORDINAL_DIGITS
        else None,
        fault_injection_pools=_fault_injection_pools(context, viewer),
        abouts=[(name, label) for name, (label, _) in EVENT_TOPICS.items()],
    )


@router.get("/events/{ordinal}")
@needs(Permission.READ)
async def show_event(request: Request, context: RequestContextDep, ordinal: int) -> Response:
    """Shows one event."""
    details = await _event_detail(context, ordinal)
    if details is None:
        raise HTTPException(404)
    return context.pages.page(
        request, "events/event.html", page="overview", layout=layout(context.state, context.settings), open=details
    )


def _fault_injection_pools(context: RequestContext, viewer: Viewer) -> list[str]:
    """Returns the pools in which the viewer may inject a simulated fault."""
    status = context.fleet_state.status
    pools = [pool.spec.id for pool in status.pools if pool.can_inject_fault] if status else []
    return [pool for pool in pools if viewer.may(Permission.ADMINISTER, run=context.run, pool=pool)]


async def _event_detail(context: RequestContext, ordinal: int) -> EventDetails | None:
    event = await _event(context, ordinal)
    if event is None:
        return None
    points = context.state.series.window(float("inf"))
    return event_details(event, context.state.annotation_log.recommendation_for(event), points)


async def _event(context: RequestContext, ordinal: int) -> Event | None:
    """Returns the event from the latest report, else from dataflow's archive. Raises: errors of the control client."""
    latest = context.state.report.events if context.state.report else ()
    matching_event = next((event for event in latest if event.ordinal == ordinal), None)
    if matching_event is None and ordinal >= 0:
        page = await context.control.events(EventQuery(before=ordinal + 1, limit=1))
        matching_event = next((event for event in page.events if event.ordinal == ordinal), None)
    return matching_event
