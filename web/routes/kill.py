"""`/kill`: stopping agents, or everybody, from changing the fleet."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.fleet import Actor, KillScope, Role
from web.accounts.viewer import Viewer
from web.audit import Deed
from web.parts import Parts, PartsOf, ViewerOf
from web.present.fleet import show_command, start_command
from web.present.shell import shell
from web.roles import Need, needs
from web.steering import reason_of, steered

router = APIRouter()

SAID = {
    KillScope.NONE: "the kill switch is off: pools follow their modes again",
    KillScope.AGENTS: "agents are stopped: the rule and people go on",
    KillScope.ALL: "everything is stopped: nothing is launched or retired until an admin turns the kill switch off",
}


@router.get("/kill")
@needs(Need.OPERATE)
async def ask(request: Request, parts: PartsOf, viewer: ViewerOf) -> Response:
    """Say what the kill switch does, and ask."""
    return parts.pages.page(
        request,
        "kill/page.html",
        page="kill",
        shell=shell(parts.state, parts.settings),
        may_release=viewer.may(Need.ADMINISTER),
        key=secrets.token_hex(16),
        commands=(start_command(parts.settings), show_command(parts.settings)),
    )


@router.post("/kill")
@needs(Need.OPERATE)
async def kill(
    parts: PartsOf,
    viewer: ViewerOf,
    scope: str = Form("all"),
    reason: Annotated[str, Form(max_length=200)] = "",
    key: Annotated[str, Form(max_length=64)] = "",
) -> Response:
    """Turn it on, or off. The fleet service refuses who may not turn it off."""
    known = {member.value: member for member in KillScope}
    if scope not in known:
        raise InvalidInput(f"there is no scope {scope[:40]!r}; known: {', '.join(known)}")
    asked = _set(parts, viewer, known[scope], reason_of(reason), key or secrets.token_hex(16))
    deed = Deed(action="fleet.kill", after={"scope": scope}, reason=reason)
    return await steered(parts, viewer, deed, asked, if_failed="The kill switch was left as it is", back="/")


async def _set(parts: Parts, viewer: Viewer, scope: KillScope, reason: str, key: str) -> str:
    if parts.fleet is None or parts.fleet_poller is None:
        raise Unavailable("this page was told of no fleet service, so nothing can be stopped from here")
    actor = Actor(name=viewer.name, role=Role((viewer.scope or viewer.role).value))
    await parts.fleet.kill_switch(scope, actor=actor, key=key, reason=reason)
    await parts.fleet_poller.look()
    return SAID[scope]
