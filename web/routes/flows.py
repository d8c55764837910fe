"""`/flows/{id}`: pausing a flow and letting it go on."""

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import FlowId
from web.flash import Flash
from web.parts import Parts, PartsOf, ViewerOf
from web.present.shell import shell

router = APIRouter()


@router.get("/flows/{flow:path}/pause")
async def ask_pause(request: Request, parts: PartsOf, flow: str) -> Response:
    """Say what pausing would do, and ask."""
    return parts.pages.page(
        request,
        "confirm.html",
        page="overview",
        shell=shell(parts.state, parts.settings),
        title=f"Pause flow {FlowId(flow)}?",
        sentence=(
            "No new group is issued; what is leased is finished and kept. The trainer goes on with what is buffered, "
            "then waits. You can resume at any time, nothing is lost."
        ),
        action=request.url.path,
        button="Pause flow",
        back="/",
        tone="",
    )


@router.post("/flows/{flow:path}/pause")
async def pause(parts: PartsOf, viewer: ViewerOf, flow: str, reason: str = Form("")) -> Response:
    """Stop issuing."""
    return await _set(parts, flow, is_paused=True, actor=viewer.name, reason=reason)


@router.post("/flows/{flow:path}/resume")
async def resume(parts: PartsOf, viewer: ViewerOf, flow: str, reason: str = Form("")) -> Response:
    """Go on issuing."""
    return await _set(parts, flow, is_paused=False, actor=viewer.name, reason=reason)


async def _set(parts: Parts, flow: str, *, is_paused: bool, actor: str, reason: str) -> Response:
    try:
        told = await parts.control.pause_flow(
            FlowId(flow), is_paused=is_paused, actor=actor, reason=reason or "asked on the web page"
        )
        flash = Flash(text=told, tone="good")
    except AstraFlowError as problem:
        flash = Flash(text=f"The flow was left as it is: {problem}", tone="bad")
    response = RedirectResponse("/", 303)
    flash.put(response)
    return response
