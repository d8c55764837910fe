"""`/`: overview of the run. `/doctor`: faults of learning. `/events/{ordinal}`: one event. `/charts/{name}`: one chart
with its table."""

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import Event
from web.charts import panels
from web.charts.tables import as_table, rows_of
from web.charts.version_lag import lag_table
from web.components.events import EVENT_TOPICS
from web.components.layout import page_selection
from web.events.details import EventDetails, event_details
from web.overview.doctor import doctor_view, fault_views
from web.overview.learning_queries import LearningSource, load_learning
from web.overview.views import chart_titles, overview, published_versions
from web.requests import responses
from web.requests.dependencies import (
    ControlDep,
    FleetDep,
    HistoryDep,
    LiveTextsDep,
    PagesDep,
    PartsDep,
    ReportDep,
    RunNameDep,
    StateDep,
    ViewerDep,
)
from web.requests.range_points import HistorySource, points_in_range
from web.requests.run_lookup import annotations_of
from web.security.roles import Permission, needs
from web.state.run_state import RunState

router = APIRouter()

MAX_ORDINAL_DIGITS = 16
"""Longest accepted event ordinal. Digits."""


async def _fault_injection_pools(fleet: FleetDep, run: RunNameDep, viewer: ViewerDep) -> list[str]:
    """Returns the pools in which the viewer may inject a simulated fault."""
    status = fleet.state.status
    pools = [pool.spec.id for pool in status.pools if pool.can_inject_fault] if status else []
    return [pool for pool in pools if viewer.may(Permission.ADMINISTER, run=run, pool=pool)]


async def _event_details(state: RunState, control: ControlPlaneClient, ordinal: int) -> EventDetails | None:
    event = await _event(state, control, ordinal)
    if event is None:
        return None
    points = state.series.window(float("inf"))
    return event_details(event, state.annotation_log.recommendation_for(event), points)


async def _event(state: RunState, control: ControlPlaneClient, ordinal: int) -> Event | None:
    """Returns the event from the latest report, else from dataflow's archive. Raises: errors of the control client."""
    latest = state.report.events if state.report else ()
    matching_event = next((event for event in latest if event.ordinal == ordinal), None)
    if matching_event is None and ordinal >= 0:
        page = await control.events(EventQuery(before=ordinal + 1, limit=1))
        matching_event = next((event for event in page.events if event.ordinal == ordinal), None)
    return matching_event


async def _open_event(state: StateDep, control: ControlDep, event: str = "") -> EventDetails | None:
    """Returns the event in the drawer. event: its ordinal."""
    can_read = state.report is not None and event.isdecimal() and len(event) < MAX_ORDINAL_DIGITS
    return await _event_details(state, control, int(event)) if can_read else None


async def get_learning_source(parts: PartsDep, history: HistoryDep, control: ControlDep) -> LearningSource:
    """Returns the sources of the learning of the shown run."""
    return LearningSource(history=history, control=control, cache=parts.cache, clock=parts.clock)


LearningSourceDep = Annotated[LearningSource, Depends(get_learning_source)]


async def _shown_step(step: str = "") -> int | None:
    """Returns the step whose samples are shown; None for the newest. step: ignored unless it is a whole number."""
    return int(step) if step.isdecimal() and len(step) < MAX_ORDINAL_DIGITS else None


ShownStepDep = Annotated[int | None, Depends(_shown_step)]


@router.get("/")
@needs(Permission.READ)
async def show(
    request: Request,
    pages: PagesDep,
    history: HistoryDep,
    control: ControlDep,
    live_texts: LiveTextsDep,
    open_event: Annotated[EventDetails | None, Depends(_open_event)],
    fault_injection_pools: Annotated[list[str], Depends(_fault_injection_pools)],
    source: LearningSourceDep,
    fleet: FleetDep,
    step: ShownStepDep,
) -> Response:
    """Shows the overview, the waiting page before the first report, or the list of runs while no run is followed. step:
    that of the samples."""
    state, report = history.state, history.state.report
    choice = page_selection(state, request.query_params)
    frame = pages.layout(path="/", choice=choice)
    if report is None and not pages.follows_run:
        return RedirectResponse("/runs", 303)
    if report is None or choice.policy is None:
        return pages.page(request, "overview/waiting.html", page="overview", layout=frame)
    points = await points_in_range(history, choice)
    view = overview(report, points, choice, await annotations_of(state, control))
    learned, samples = await load_learning(source, report, view.stream, step)
    return pages.page(
        request,
        "overview/page.html",
        page="overview",
        layout=frame,
        live_texts={**live_texts, **chart_titles(report, points, choice)},
        view=view,
        learned=learned,
        step_samples=samples,
        step=step,
        faults=fault_views(report.learning_faults, choice.policy),
        run_id=history.recorder.run_id,
        has_fleet=fleet.state.status is not None,
        samples=_samples(history, choice.policy),
        open=open_event,
        fault_injection_pools=fault_injection_pools,
        abouts=[(name, label) for name, (label, _) in EVENT_TOPICS.items()],
    )


@router.get("/learning")
@needs(Permission.READ)
async def show_learning(
    request: Request,
    pages: PagesDep,
    report: ReportDep,
    source: LearningSourceDep,
    live_texts: LiveTextsDep,
    step: ShownStepDep,
    level: Literal["h1", "h2"] = "h1",
) -> Response:
    """Returns the headline, the evaluations and the samples as a fragment, for the live page."""
    choice = page_selection(source.history.state, request.query_params)
    stream = next(stream for stream in report.streams if stream.policy == choice.policy)
    learned, samples = await load_learning(source, report, stream, step)
    fragment = pages.page(
        request,
        "overview/_learned.html",
        live_texts=live_texts,
        key=f"policy/{stream.policy}",
        level=level,
        learned=learned,
        step_samples=samples,
        step=step,
        faults=fault_views(report.learning_faults, stream.policy),
        run_id=source.history.recorder.run_id,
        policy=stream.policy,
        query=choice.query,
    )
    return responses.with_etag(request, fragment)


@router.get("/doctor")
@needs(Permission.READ)
async def show_doctor(request: Request, pages: PagesDep, report: ReportDep) -> Response:
    """Shows the faults of learning of all policies, and what else was looked for."""
    frame = pages.layout(path="/doctor")
    return pages.page(request, "overview/doctor.html", page="overview", layout=frame, view=doctor_view(report))


@router.get("/events/{ordinal}")
@needs(Permission.READ)
async def show_event(request: Request, pages: PagesDep, state: StateDep, control: ControlDep, ordinal: int) -> Response:
    """Shows one event."""
    details = await _event_details(state, control, ordinal)
    if details is None:
        raise HTTPException(404)
    return pages.page(request, "events/event.html", page="overview", open=details)


@router.get("/charts/{name}")
@needs(Permission.READ)
async def show_chart(
    request: Request, pages: PagesDep, state: StateDep, history: HistoryDep, live_texts: LiveTextsDep, name: str
) -> Response:
    """Shows the chart in full width with its table."""
    report, choice = state.report, page_selection(state, request.query_params)
    if name not in (*panels.ALL_CHARTS, panels.VERSION_LAG):
        raise HTTPException(404)
    frame = pages.layout(path=f"/charts/{name}", choice=choice)
    if report is None and not pages.follows_run:
        return RedirectResponse("/runs", 303)
    if report is None or choice.policy is None:
        return pages.page(request, "overview/waiting.html", page="overview", layout=frame)
    points = await points_in_range(history, choice)
    rows = rows_of(points, choice.policy)
    view = overview(report, points, choice, state.annotation_log.annotations)
    is_lag = name == panels.VERSION_LAG
    heads, body = lag_table(points, choice.policy) if is_lag else as_table(panels.ALL_CHARTS[name], rows)
    return pages.page(
        request,
        "overview/chart.html",
        page="overview",
        layout=frame,
        live_texts={**live_texts, **chart_titles(report, points, choice)},
        view=view,
        chart=view.charts[name],
        samples=_samples(history, choice.policy),
        published_versions=published_versions(rows) if name == "balance" else None,
        listed={
            version.version
            for weights in report.weights
            if weights.policy == choice.policy
            for version in weights.versions
        },
        heads=heads,
        rows=body,
    )


def _samples(history: HistorySource, policy: str) -> str:
    """Returns the address of the samples of a step, to which the step is appended."""
    return f"/runs/{history.recorder.run_id}/trajectories?policy={quote(policy)}&step="
