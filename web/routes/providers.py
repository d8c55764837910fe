"""`/settings/providers`: runs a provider's preflight check. `web.routes.settings` shows the results."""

from fastapi import APIRouter
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError
from web.commands import fleet as fleet_commands
from web.commands.redirects import redirect_with_flash
from web.request_context import RequestContextDep, ViewerDep
from web.security.flash import Flash
from web.security.roles import Permission, ResourceKind, needs
from web.views.providers import outcome

router = APIRouter()

RETURN_PATH = "/settings#providers"


@router.post("/settings/providers/{provider:path}/preflight")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def preflight(context: RequestContextDep, viewer: ViewerDep, provider: str) -> Response:
    """Runs the provider's preflight check and redirects to the page with the result. No instance is started."""
    try:
        result = await fleet_commands.run_preflight(context, viewer, provider)
    except AstraFlowError as problem:
        return redirect_with_flash(Flash.failure(f"{provider[:80]} was not tested", problem), page=RETURN_PATH)
    return redirect_with_flash(
        Flash(text=f"{provider}: {outcome(result)}", tone="good" if result.is_ok else "bad"), page=RETURN_PATH
    )
