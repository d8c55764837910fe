"""`/flows/{id}`, `/policies/{id}`: pausing a flow and letting it go on, and changing plug-ins."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import FlowId
from astraflow.contract.plugins import PluginChange, Seam
from astraflow.contract.reports import FlowReport, StreamReport
from web.accounts.viewer import Viewer
from web.acts import flows as flow_acts
from web.acts.fleet import form_key
from web.acts.plugin_form import PluginForm, differs, flow_form, sampler_form, wanted_filters, wanted_single
from web.acts.steering import NO_REASON, told
from web.door.flash import Flash, Undo
from web.door.roles import Need, On, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.present.shell import shell

router = APIRouter()

Back = Literal["", "dataflow"]
"""The page that asked: the overview or the dataflow's."""

MOST_FIELDS = 100


@router.get("/flows/{flow:path}/pause")
@needs(Need.OPERATE, on=On.RUN)
async def ask_pause(request: Request, parts: PartsOf, flow: str, back: Back = "") -> Response:
    """Say what pausing would do, and ask."""
    return parts.pages.page(
        request,
        "confirm.html",
        page="dataflow",
        shell=shell(parts.state, parts.settings),
        title=f"Pause flow {FlowId(flow)}?",
        sentence=(
            "No new group is issued; what is leased is finished and kept. The trainer goes on with what is buffered, "
            "then waits. You can resume at any time, nothing is lost."
        ),
        action=f"{request.url.path}{f'?back={back}' if back else ''}",
        button="Pause flow",
        back=f"/{back}",
        tone="",
    )


@router.post("/flows/{flow:path}/pause")
@needs(Need.OPERATE, on=On.RUN)
async def pause(parts: PartsOf, viewer: ViewerOf, flow: str, back: Back = "", reason: str = Form("")) -> Response:
    """Stop issuing."""
    return await _set(parts, flow, is_paused=True, viewer=viewer, reason=reason, back=back)


@router.post("/flows/{flow:path}/resume")
@needs(Need.OPERATE, on=On.RUN)
async def resume(parts: PartsOf, viewer: ViewerOf, flow: str, back: Back = "", reason: str = Form("")) -> Response:
    """Go on issuing."""
    return await _set(parts, flow, is_paused=False, viewer=viewer, reason=reason, back=back)


@router.get("/flows/{flow:path}/plugins")
@needs(Need.OPERATE, on=On.RUN)
async def ask_plugins(request: Request, parts: PartsOf, flow: str) -> Response:
    """The form: which selector and filters are in force, and which are wanted."""
    return _form_page(request, parts, flow_form(_flow(parts, flow), action=request.url.path))


@router.post("/flows/{flow:path}/plugins")
@needs(Need.OPERATE, on=On.RUN)
async def change_plugins(request: Request, parts: PartsOf, viewer: ViewerOf, flow: str) -> Response:
    """Plan what differs from what is to come."""
    form, now = await _fields(request), _flow(parts, flow)

    def change() -> PluginChange:
        selector, filters = wanted_single(form, Seam.SELECTOR), wanted_filters(form)
        has_other = selector is not None and differs(Seam.SELECTOR, [selector], [now.selector], now.planned)
        return PluginChange(
            flow=now.id,
            selector=selector if has_other else None,
            filters=filters if differs(Seam.FILTERS, filters, now.filters, now.planned) else None,
            actor=viewer.name,
            reason=_reason(form),
        )

    return await _change(parts, viewer, change)


@router.get("/policies/{policy:path}/sampler")
@needs(Need.OPERATE, on=On.RUN)
async def ask_sampler(request: Request, parts: PartsOf, policy: str) -> Response:
    """The same for the sampler of a policy's stream."""
    return _form_page(request, parts, sampler_form(_stream(parts, policy), action=request.url.path))


@router.post("/policies/{policy:path}/sampler")
@needs(Need.OPERATE, on=On.RUN)
async def change_sampler(request: Request, parts: PartsOf, viewer: ViewerOf, policy: str) -> Response:
    """Plan it if it differs."""
    form, now = await _fields(request), _stream(parts, policy)

    def change() -> PluginChange:
        sampler = wanted_single(form, Seam.SAMPLER)
        has_other = sampler is not None and differs(Seam.SAMPLER, [sampler], [now.sampler], now.planned)
        return PluginChange(
            policy=now.policy, sampler=sampler if has_other else None, actor=viewer.name, reason=_reason(form)
        )

    return await _change(parts, viewer, change)


async def _set(parts: Parts, flow: str, *, is_paused: bool, viewer: Viewer, reason: str, back: str) -> Response:
    key = form_key(flow, is_paused, time.time_ns())
    asked = flow_acts.pause_flow(parts, viewer, FlowId(flow), is_paused=is_paused, key=key, reason=reason)
    try:
        flash = Flash(text=await asked, tone="good", undo=Undo.RESUME if is_paused else None, of=flow)
    except AstraFlowError as problem:
        flash = Flash(text=f"The flow was left as it is: {problem}", tone="bad")
    return told(flash, back=f"/{back}")


async def _change(parts: Parts, viewer: Viewer, read: Callable[[], PluginChange]) -> Response:
    try:
        change = read()
        if not change.wanted():
            raise InvalidInput("that is what is in force, or planned, already")
        said = await flow_acts.change_plugins(parts, viewer, change, key=form_key(time.time_ns()))
        return told(Flash(text=said, tone="good"), back="/dataflow")
    except AstraFlowError as problem:
        return told(Flash(text=f"Nothing is changed: {problem}", tone="bad"), back="/dataflow")


def _form_page(request: Request, parts: Parts, form: PluginForm) -> Response:
    return parts.pages.page(
        request,
        "dataflow/plugins.html",
        page="dataflow",
        shell=shell(parts.state, parts.settings),
        form=form,
    )


async def _fields(request: Request) -> Mapping[str, Sequence[str]]:
    form = await request.form(max_fields=MOST_FIELDS)
    return {name: [str(value) for value in form.getlist(name)] for name in form}


def _reason(form: Mapping[str, Sequence[str]]) -> str:
    return "".join(form.get("reason", ())).strip()[:200] or NO_REASON


def _flow(parts: Parts, name: str) -> FlowReport:
    report = parts.state.report
    found = next((flow for flow in report.flows if flow.id == name), None) if report else None
    if found is None:
        raise HTTPException(404, "The run has no such flow.")
    return found


def _stream(parts: Parts, name: str) -> StreamReport:
    report = parts.state.report
    found = next((stream for stream in report.streams if stream.policy == name), None) if report else None
    if found is None:
        raise HTTPException(404, "The run has no such policy.")
    return found
