"""`/kill`: stop programs, or everybody, from changing pools; and let them go on."""

import time
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet import KillScope
from web.acts import fleet as fleet_acts
from web.acts.steering import told
from web.door.flash import Flash
from web.door.roles import Need, On, needs
from web.parts import PartsOf, ViewerOf
from web.present.pools import fleet_view
from web.present.shell import shell

router = APIRouter()

HELD = "held on the page"
"""The reason of who held the button."""


@router.get("/kill")
@needs(Need.OPERATE, on=On.RUN)
async def ask(request: Request, parts: PartsOf) -> Response:
    """Say what it does, and ask: where there are no scripts, or whoever does not hold the button, comes here."""
    return parts.pages.page(
        request,
        "kill/page.html",
        page="pools",
        shell=shell(parts.state, parts.settings),
        fleet=fleet_view(parts.fleet_state, parts.settings, now=parts.clock.wall()),
        admins=await parts.accounts.users.admins(),
        key=fleet_acts.form_key("kill", time.time_ns()),
    )


@router.post("/kill")
@needs(Need.OPERATE, on=On.RUN)
async def switch(
    parts: PartsOf,
    viewer: ViewerOf,
    scope: Annotated[str, Form(max_length=20)] = "",
    reason: Annotated[str, Form(max_length=2000)] = "",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Turn it, and say what came of it."""
    try:
        if scope not in {known.value for known in KillScope}:
            raise InvalidInput(f"{scope!r} is nobody whom the kill switch stops: none, agents or all")
        key = key or fleet_acts.form_key("kill", viewer.name, time.time_ns())
        done = await fleet_acts.set_kill(parts, viewer, KillScope(scope), key=key, reason=reason.strip() or HELD)
    except AstraFlowError as problem:
        return told(Flash(text=f"The kill switch was not turned: {problem}", tone="bad"), back="/kill")
    return told(Flash(text=done.message, tone="good" if scope == "none" else "bad"), back="/pools")
