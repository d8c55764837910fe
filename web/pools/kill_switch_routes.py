"""`/kill`: sets the kill switch, which stops agents or all actors from changing pools."""

import time
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.records import render_summary
from web.pools.views import fleet_view
from web.requests.commands import form_key
from web.requests.dependencies import AdminsDep, CommandsDep, FleetDep, PagesDep, ViewerDep
from web.requests.responses import redirect_with_flash
from web.security.flash import Flash
from web.security.roles import Permission, ResourceKind, needs

router = APIRouter()

HOLD_BUTTON_REASON = "button held on the page"
"""Default reason when the hold-to-confirm button is used."""


@router.get("/kill")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def ask(request: Request, pages: PagesDep, fleet: FleetDep, admins: AdminsDep) -> Response:
    """Shows the confirmation page, for browsers without scripts and for a short press of the hold button."""
    return pages.page(
        request,
        "pools/kill_switch.html",
        page="pools",
        fleet=fleet_view(fleet),
        admins=admins,
        key=form_key("kill", time.time_ns()),
    )


@router.post("/kill")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
async def switch(
    commands: CommandsDep,
    viewer: ViewerDep,
    scope: Annotated[str, Form(max_length=20)] = "",
    reason: Annotated[str, Form(max_length=2000)] = "",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Sets the kill switch and redirects with the result."""
    try:
        if scope not in {kill_scope.value for kill_scope in KillScope}:
            raise InvalidInput(
                f"cannot set the kill switch: unknown scope {scope!r}; use none, agents or all",
                code="kill_switch.unknown_scope",
            )
        key = key or form_key("kill", viewer.name, time.time_ns())
        done = await commands.set_kill_switch(KillScope(scope), key=key, reason=reason.strip() or HOLD_BUTTON_REASON)
    except AstraFlowError as problem:
        return redirect_with_flash(Flash.failure("The kill switch was not changed", problem), page="/kill")
    if scope != "none":
        return RedirectResponse("/pools", 303)  # whose banner says it
    return redirect_with_flash(Flash(text=render_summary(done), tone="good"), page="/pools")
