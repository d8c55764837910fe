"""`/settings/grants`: giving roles on one run or pool, and taking them back. `web.routes.settings` shows them."""

import re
from typing import Annotated

from fastapi import APIRouter, Form, Path, Request
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError, InvalidInput
from web.acts.steering import told
from web.door.flash import Flash
from web.door.places import Grant, Place
from web.door.roles import Need, needs
from web.parts import PartsOf, ViewerOf
from web.present.shell import shell
from web.routes.settings import Reason, role_of

router = APIRouter()

BACK = "/settings#grants"

HOLDER = re.compile(r"([0-9]{1,15})(?::([0-9]{1,15}))?")
"""A user's id, and the id of one of their tokens when it is that."""

GrantNumber = Annotated[int, Path(ge=0, le=2**53)]
"""Databases keep no larger ones."""


@router.post("/settings/grants")
@needs(Need.ADMINISTER)
async def give(
    parts: PartsOf,
    viewer: ViewerOf,
    holder: str = Form(""),
    role: str = Form(""),
    place: str = Form(""),
    pool: str = Form(""),
    reason: Reason = "",
) -> Response:
    """Grant a role on a run or a pool. place: the run's name (`run` says which run the page shows)."""
    try:
        found = HOLDER.fullmatch(holder)
        if found is None:
            raise InvalidInput("choose a user, or one of their tokens")
        granted = Grant(role=role_of(role), place=Place(run=place.strip(), pool=pool.strip()))
        token_id = int(found[2]) if found[2] else None
        await parts.accounts.grants.give(
            int(found[1]), granted.role, granted.place, by=viewer, token_id=token_id, reason=reason
        )
    except AstraFlowError as problem:
        return told(Flash(text=f"Nothing was granted: {problem}", tone="bad"), back=BACK)
    return told(Flash(text=f"Granted: {granted.words}", tone="good"), back=BACK)


@router.get("/settings/grants/{grant_id}/take")
@needs(Need.ADMINISTER)
async def ask_take(request: Request, parts: PartsOf, grant_id: GrantNumber) -> Response:
    """Say what taking a grant back does, and ask."""
    return parts.pages.page(
        request,
        "confirm.html",
        page="settings",
        shell=shell(parts.state, parts.settings),
        title="Take this grant back?",
        sentence="From the next request on they have there what they have everywhere. What they changed stays.",
        action=request.url.path,
        button="Take back",
        back="/settings",
        tone="bad",
    )


@router.post("/settings/grants/{grant_id}/take")
@needs(Need.ADMINISTER)
async def take(parts: PartsOf, viewer: ViewerOf, grant_id: GrantNumber, reason: Reason = "") -> Response:
    """Take a grant back."""
    try:
        said = await parts.accounts.grants.take(grant_id, by=viewer, reason=reason)
    except AstraFlowError as problem:
        return told(Flash(text=f"Nothing was taken back: {problem}", tone="bad"), back=BACK)
    return told(Flash(text=said, tone="good"), back=BACK)
