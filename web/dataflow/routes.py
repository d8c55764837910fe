"""`/dataflow`: the path of groups as a diagram. `/flows/{id}`, `/policies/{id}`: pauses flows and changes plugins."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId
from astraflow.contract.plugins import PluginChange, PluginKind, PluginSlot
from astraflow.contract.reports.report import FlowReport, StreamReport
from web.components.downloads import FileFormat, Sheet, sheet_response
from web.components.live_sessions import live_sessions
from web.components.rendering import PageRenderer
from web.dataflow import commands as flow_commands
from web.dataflow.plugin_form import (
    PluginForm,
    changes_plugins,
    flow_form,
    requested_filters,
    requested_plugin,
    sampler_form,
)
from web.dataflow.plugins import specs_text
from web.dataflow.views import COLUMNS, PERIODS, dataflow_sheet, dataflow_view
from web.requests.commands import Commands, form_key
from web.requests.dependencies import AdminsDep, CommandsDep, PagesDep, RecorderDep, StateDep, ViewerDep
from web.requests.responses import DEFAULT_REASON, redirects
from web.security.flash import Flash, Undo
from web.security.roles import Permission, ResourceKind, needs
from web.state.run_state import RunState

router = APIRouter()


async def _view(state: StateDep, recorder: RecorderDep, admins: AdminsDep, over: str = "run") -> dict[str, Any]:
    report, view = state.report, None
    if report is not None:
        chosen = over if over in PERIODS else "run"
        view = dataflow_view(report, state.recent_counts.earliest, period=chosen, run_id=recorder.run_id)
    return {
        "view": view,
        "specs_text": specs_text,
        "sessions": live_sessions(report.nodes if report else ()),
        "admins": admins,
    }


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


Back = Literal["", "dataflow"]
"""Page to return to: empty for the overview, `dataflow` for the dataflow page."""

MAX_FIELDS = 100


@router.get("/flows/{flow:path}/pause")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def ask_pause(request: Request, pages: PagesDep, flow: str, back: Back = "") -> Response:
    """Shows the confirmation page for pausing a flow."""
    return pages.confirm(
        request,
        page="dataflow",
        title=f"Pause flow {FlowId(flow)}?",
        sentence=(
            "No new group is issued; leased tasks finish and their results are kept. The trainer consumes the buffer, "
            "then waits. You can resume at any time; nothing is lost."
        ),
        button="Pause flow",
        back=f"/{back}",
        tone="",
    )


@router.post("/flows/{flow:path}/pause")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
@redirects("/{back}", failed="The flow was not changed")
async def pause(commands: CommandsDep, flow: str, back: Back = "", reason: str = Form("")) -> Flash:
    """Pauses the flow: no new group is issued."""
    return await _set(commands, flow, is_paused=True, reason=reason)


@router.post("/flows/{flow:path}/resume")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
@redirects("/{back}", failed="The flow was not changed")
async def resume(commands: CommandsDep, flow: str, back: Back = "", reason: str = Form("")) -> Flash:
    """Resumes the flow."""
    return await _set(commands, flow, is_paused=False, reason=reason)


@router.get("/flows/{flow:path}/plugins")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def ask_plugins(request: Request, pages: PagesDep, state: StateDep, flow: str) -> Response:
    """Shows the form with the active and the planned selector and filters."""
    report = _flow(state, flow)
    return _form_page(request, pages, flow_form(report, _kinds(state), action=request.url.path))


@router.post("/flows/{flow:path}/plugins")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
@redirects("/dataflow", failed="Nothing was changed")
async def change_plugins(request: Request, commands: CommandsDep, state: StateDep, viewer: ViewerDep, flow: str) -> str:
    """Plans the selector and filters that differ from the active or planned ones."""
    form, flow_report = await _fields(request), _flow(state, flow)
    selector, filters = requested_plugin(form, PluginSlot.SELECTOR), requested_filters(form)
    has_other = selector is not None and changes_plugins(
        PluginSlot.SELECTOR, [selector], [flow_report.selector], flow_report.planned
    )
    has_other_filters = changes_plugins(PluginSlot.FILTERS, filters, flow_report.filters, flow_report.planned)
    change = PluginChange(
        flow=flow_report.id,
        selector=selector if has_other else None,
        filters=filters if has_other_filters else None,
        actor=viewer.name,
        reason=_reason(form),
    )
    return await _change(commands, change)


@router.get("/policies/{policy:path}/sampler")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def ask_sampler(request: Request, pages: PagesDep, state: StateDep, policy: str) -> Response:
    """Shows the form with the sampler of a policy's stream."""
    report = _stream(state, policy)
    return _form_page(request, pages, sampler_form(report, _kinds(state), action=request.url.path))


@router.post("/policies/{policy:path}/sampler")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
@redirects("/dataflow", failed="Nothing was changed")
async def change_sampler(
    request: Request, commands: CommandsDep, state: StateDep, viewer: ViewerDep, policy: str
) -> str:
    """Plans the sampler if it differs from the active or planned one."""
    form, stream = await _fields(request), _stream(state, policy)
    sampler = requested_plugin(form, PluginSlot.SAMPLER)
    has_other = sampler is not None and changes_plugins(PluginSlot.SAMPLER, [sampler], [stream.sampler], stream.planned)
    change = PluginChange(
        policy=stream.policy, sampler=sampler if has_other else None, actor=viewer.name, reason=_reason(form)
    )
    return await _change(commands, change)


async def _set(commands: Commands, flow: str, *, is_paused: bool, reason: str) -> Flash:
    key = form_key(flow, is_paused, time.time_ns())
    text = await flow_commands.pause_flow(commands, FlowId(flow), is_paused=is_paused, key=key, reason=reason)
    return Flash(text=text, tone="good", undo=Undo.RESUME if is_paused else None, of=flow)


async def _change(commands: Commands, change: PluginChange) -> str:
    if not change.specs_by_slot():
        raise InvalidInput(
            "cannot change plugins: these are already active or planned; choose others",
            code="plugin.nothing_to_change",
        )
    return await flow_commands.change_plugins(commands, change, key=form_key(time.time_ns()))


def _form_page(request: Request, pages: PageRenderer, form: PluginForm) -> Response:
    return pages.page(request, "dataflow/plugins.html", page="dataflow", form=form)


async def _fields(request: Request) -> Mapping[str, Sequence[str]]:
    form = await request.form(max_fields=MAX_FIELDS)
    return {name: [str(value) for value in form.getlist(name)] for name in form}


def _reason(form: Mapping[str, Sequence[str]]) -> str:
    return "".join(form.get("reason", ())).strip()[:200] or DEFAULT_REASON


def _kinds(state: RunState) -> Sequence[PluginKind]:
    return state.report.plugin_kinds if state.report else ()


def _flow(state: RunState, name: str) -> FlowReport:
    report = state.report
    flow_report = next((flow for flow in report.flows if flow.id == name), None) if report else None
    if flow_report is None:
        raise HTTPException(404, "The run has no such flow.")
    return flow_report


def _stream(state: RunState, name: str) -> StreamReport:
    report = state.report
    stream_report = next((stream for stream in report.streams if stream.policy == name), None) if report else None
    if stream_report is None:
        raise HTTPException(404, "The run has no such policy.")
    return stream_report
