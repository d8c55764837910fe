"""`/settings/providers`: testing a provider. The page that shows them is `web.routes.settings`."""

from fastapi import APIRouter
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError
from web.acts import fleet as fleet_acts
from web.acts.steering import told
from web.door.flash import Flash
from web.door.roles import Need, On, needs
from web.parts import PartsOf, ViewerOf
from web.present.providers import outcome

router = APIRouter()

BACK = "/settings#providers"


@router.post("/settings/providers/{provider:path}/test")
@needs(Need.OPERATE, on=On.RUN)
async def test(parts: PartsOf, viewer: ViewerOf, provider: str) -> Response:
    """Ask it whether it would do its part. Nothing is started; what it said stands on the page."""
    try:
        found = await fleet_acts.rehearse_provider(parts, viewer, provider)
    except AstraFlowError as problem:
        return told(Flash(text=f"{provider[:80]} was not tested: {problem}", tone="bad"), back=BACK)
    return told(Flash(text=f"{provider}: {outcome(found)}", tone="good" if found.is_ok else "bad"), back=BACK)
