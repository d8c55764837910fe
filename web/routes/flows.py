"""`/flows/{id}`: pausing a flow and letting it go on."""

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from astraflow.contract.ids import FlowId
from web.accounts.viewer import Viewer
from web.audit import Deed
from web.parts import Parts, PartsOf, ViewerOf
from web.present.shell import shell
from web.roles import Need, needs
from web.steering import reason_of, steered

router = APIRouter()


@router.get("/flows/{flow:path}/pause")
@needs(Need.OPERATE)
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
@needs(Need.OPERATE)
async def pause(parts: PartsOf, viewer: ViewerOf, flow: str, reason: str = Form("")) -> Response:
    """Stop issuing."""
    return await _set(parts, flow, is_paused=True, viewer=viewer, reason=reason)


@router.post("/flows/{flow:path}/resume")
@needs(Need.OPERATE)
async def resume(parts: PartsOf, viewer: ViewerOf, flow: str, reason: str = Form("")) -> Response:
    """Go on issuing."""
    return await _set(parts, flow, is_paused=False, viewer=viewer, reason=reason)


async def _set(parts: Parts, flow: str, *, is_paused: bool, viewer: Viewer, reason: str) -> Response:
    asked = parts.control.pause_flow(FlowId(flow), is_paused=is_paused, actor=viewer.name, reason=reason_of(reason))
    deed = Deed(action="flow.pause" if is_paused else "flow.resume", target=flow, reason=reason)
    return await steered(parts, viewer, deed, asked, if_failed="The flow was left as it is", back="/")
