"""`/api/v1/tokens`, `/sessions`: with what one comes in. A session is needed: tokens do not look after accounts."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from web.accounts.tokens import LONGEST_DAYS, LONGEST_NAME
from web.acts.fleet import answered_once
from web.door.roles import Need, Role, needs
from web.parts import PartsOf, ViewerOf
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.terms import LARGEST, PREFIX, SENT, Body, Filled, Key, Reason, Said, Whole, refusals
from web.routes.api.users import RoleName
from web.tables import ApiToken, BrowserSession, User

router = APIRouter(prefix=PREFIX, tags=["accounts"])

TokenNumber = Annotated[int, Path(ge=1, le=LARGEST, description="Id of the token.", examples=[1])]
SessionName = Annotated[
    str, Path(pattern=r"^[0-9a-f]{1,128}$", description="Id of the session.", examples=["5f0c2ab19d3e4c07"])
]
Days = Annotated[int, Field(ge=1, le=LONGEST_DAYS), Whole]


class TokenAsked(Body):
    """A token of one's own."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "nightly", "scope": "operator", "days": 30, "reason": "launches the nightly run"}]
        }
    )

    name: str = Field(
        min_length=1, max_length=LONGEST_NAME, pattern=r"^[!-~]([ -~]*[!-~])?$", description="What it is for."
    )
    scope: RoleName = Field(description="It acts in this role, and never in more than its user's at that moment.")
    days: Days = Field(description="How long it is good.")
    reason: Reason


class TokenAnswer(Filled):
    """A token that is good; its secret is shown nowhere."""

    id: int
    user: str
    name: str
    scope: RoleName
    created_at: float = Field(description="Unix seconds.")
    expires_at: float = Field(description="Unix seconds.")


class TokenList(Filled):
    """Newest first."""

    items: list[TokenAnswer]


class MadeAnswer(Filled):
    """A token with its secret."""

    token: TokenAnswer
    secret: str | None = Field(
        description="What programs send. In the first answer alone: null when the same key is sent again."
    )


class SessionOpen(Filled):
    """A browser that is logged in."""

    id: str
    user: str
    browser: str = Field(description="What it called itself.")
    came_from: str = Field(description="Address it was opened from.")
    opened_by: str = Field(description="`link`, `password` or `provider`.")
    created_at: float = Field(description="Unix seconds.")
    expires_at: float = Field(description="Unix seconds.")
    is_here: bool = Field(description="Whether it is the one that asks.")


class SessionList(Filled):
    """Newest first."""

    items: list[SessionOpen]


@router.get("/tokens", response_model=TokenList, responses=refusals())
@needs(Need.OWN)
async def tokens(parts: PartsOf, viewer: ViewerOf) -> dict[str, Any]:
    """Tokens that are good: one's own; for administrators everybody's."""
    found = await parts.accounts.tokens.of(viewer, of_all=viewer.may(Need.ADMINISTER))
    return {"items": [_token(row, user) for row, user in found]}


@router.post("/tokens", status_code=201, response_model=MadeAnswer, responses=refusals(*SENT))
@needs(Need.OWN)
async def make(parts: PartsOf, viewer: ViewerOf, body: TokenAsked, key: Key) -> dict[str, Any]:
    """Make a token of one's own, and show it: this answer is the only place where it ever is."""
    secret = ""

    async def asked() -> str:
        nonlocal secret
        number, secret = await parts.accounts.tokens.make(
            viewer, name=body.name, scope=Role(body.scope), days=body.days, reason=body.reason
        )
        return str(number)

    number = await answered_once(parts, viewer, asked, key=key, asked_for=json.dumps(["token", body.model_dump()]))
    own = await parts.accounts.tokens.of(viewer, of_all=False)
    made = next(((row, user) for row, user in own if str(row.id) == number), None)
    if made is None:
        raise HTTPException(409, f"token {number} was revoked since: ask again under a new key")
    return {"token": _token(*made), "secret": secret or None}


@router.post("/tokens/{token_id}/revoke", response_model=Said, responses=refusals(404, *SENT))
@needs(Need.OWN)
async def revoke_token(
    parts: PartsOf, viewer: ViewerOf, token_id: TokenNumber, body: ReasonOnly, key: Key
) -> dict[str, Any]:
    """End a token, one's own or, for administrators, anybody's: it is refused from the next request on."""
    of_all = viewer.may(Need.ADMINISTER)

    async def asked() -> str:
        if not any(row.id == token_id for row, _ in await parts.accounts.tokens.of(viewer, of_all=of_all)):
            raise HTTPException(404, f"there is no token {token_id} that is good and that you may revoke")
        name = await parts.accounts.tokens.revoke(token_id, by=viewer, of_all=of_all, reason=body.reason)
        return f"token {name} is revoked"

    asked_for = json.dumps(["revoke", token_id, body.reason])
    return {"message": await answered_once(parts, viewer, asked, key=key, asked_for=asked_for)}


@router.get("/sessions", response_model=SessionList, responses=refusals())
@needs(Need.OWN)
async def sessions(parts: PartsOf, viewer: ViewerOf) -> dict[str, Any]:
    """Browsers that are logged in: one's own; for administrators everybody's."""
    found = await parts.accounts.sessions.of(viewer, of_all=viewer.may(Need.ADMINISTER))
    return {"items": [_session(row, user, here=viewer.session) for row, user in found]}


@router.post("/sessions/{session_id}/end", response_model=Said, responses=refusals(404, *SENT))
@needs(Need.OWN)
async def end_session(
    parts: PartsOf, viewer: ViewerOf, session_id: SessionName, body: ReasonOnly, key: Key
) -> dict[str, Any]:
    """Log a browser out, one's own or, for administrators, anybody's."""
    of_all = viewer.may(Need.ADMINISTER)

    async def asked() -> str:
        if not any(row.cookie_hash == session_id for row, _ in await parts.accounts.sessions.of(viewer, of_all=of_all)):
            raise HTTPException(404, "there is no such session that is open and that you may end")
        await parts.accounts.sessions.revoke(session_id, by=viewer, of_all=of_all, reason=body.reason)
        return "that browser is logged out"

    asked_for = json.dumps(["end", session_id, body.reason])
    return {"message": await answered_once(parts, viewer, asked, key=key, asked_for=asked_for)}


def _token(row: ApiToken, user: User) -> dict[str, Any]:
    return {
        "id": row.id,
        "user": user.name,
        "name": row.name,
        "scope": row.scope,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }


def _session(row: BrowserSession, user: User, *, here: str) -> dict[str, Any]:
    return {
        "id": row.cookie_hash,
        "user": user.name,
        "browser": row.browser,
        "came_from": row.came_from,
        "opened_by": row.opened_by,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "is_here": row.cookie_hash == here,
    }
