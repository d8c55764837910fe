"""`/settings/grants`: grants and revokes roles on one run or pool. `web.settings.routes` lists the grants."""

import re
from typing import Annotated

from fastapi import APIRouter, Form, Path, Request
from fastapi.responses import Response

from astraflow.contract.errors import InvalidInput
from web.database.tables import MAX_ID
from web.requests.dependencies import AccountsDep, CommandsDep, PagesDep, ViewerDep
from web.requests.responses import redirects
from web.security.flash import Flash
from web.security.roles import Grant, Permission, Resource, ResourceKind, needs
from web.settings.providers import outcome
from web.settings.routes import Reason, role_of

router = APIRouter()

RETURN_PATH = "/settings#grants"

HOLDER = re.compile(r"([0-9]{1,15})(?::([0-9]{1,15}))?")
"""User id, followed by `:` and a token id when the holder is one of the user's tokens."""

GrantNumber = Annotated[int, Path(ge=0, le=MAX_ID)]
"""Bounded to the integers that the database stores exactly."""


@router.post("/settings/grants")
@needs(Permission.ACCOUNTS)
@redirects(RETURN_PATH, failed="Nothing was granted")
async def grant(
    accounts: AccountsDep,
    viewer: ViewerDep,
    holder: str = Form(""),
    role: str = Form(""),
    resource: str = Form(""),
    pool: str = Form(""),
    reason: Reason = "",
) -> str:
    """Grants a role on a run or a pool. resource: the run's name (`run` is the query parameter for the shown run)."""
    holder_match = HOLDER.fullmatch(holder)
    if holder_match is None:
        raise InvalidInput("cannot grant a role: no user or token is selected; select one", code="grant.no_holder")
    granted = Grant(role=role_of(role), resource=Resource(run=resource.strip(), pool=pool.strip()))
    token_id = int(holder_match[2]) if holder_match[2] else None
    await accounts.grants.grant(
        int(holder_match[1]), granted.role, granted.resource, by=viewer, token_id=token_id, reason=reason
    )
    return f"Granted: {granted.description}"


@router.get("/settings/grants/{grant_id}/revoke")
@needs(Permission.ACCOUNTS)
async def ask_revoke(request: Request, pages: PagesDep, grant_id: GrantNumber) -> Response:
    """Shows the confirmation page for revoking a grant."""
    return pages.confirm(
        request,
        page="settings",
        title="Revoke this grant?",
        sentence="From the next request on, only the holder's global role applies there. Past changes stay.",
        button="Revoke",
        back="/settings",
    )


@router.post("/settings/grants/{grant_id}/revoke")
@needs(Permission.ACCOUNTS)
@redirects(RETURN_PATH, failed="Nothing was revoked")
async def revoke(accounts: AccountsDep, viewer: ViewerDep, grant_id: GrantNumber, reason: Reason = "") -> str:
    """Revokes a grant."""
    return await accounts.grants.revoke(grant_id, by=viewer, reason=reason)


@router.post("/settings/providers/{provider:path}/preflight")
@needs(Permission.OPERATE, on=ResourceKind.RUN)
@redirects("/settings#providers", failed="{provider} was not tested")
async def preflight(commands: CommandsDep, provider: str) -> Flash:
    """Runs the provider's preflight check and redirects to the page with the result. No instance is started."""
    result = await commands.run_preflight(provider)
    return Flash(text=f"{provider}: {outcome(result)}", tone="good" if result.is_ok else "bad")
