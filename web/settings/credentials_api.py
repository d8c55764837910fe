"""`/api/v1/tokens`, `/sessions`: API tokens and browser sessions. Requires a session: tokens cannot manage accounts."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from web.accounts.tokens import MAX_DAYS, MAX_NAME_LETTERS
from web.database.tables import MAX_ID, ApiToken, BrowserSession, User
from web.requests.dependencies import AccountsDep, ViewerDep
from web.rest.changes import ChangeDep
from web.rest.common import (
    ApiRouter,
    ItemList,
    MessageResponse,
    Reason,
    ReasonRequest,
    RequestBody,
    ResponseModel,
    WholeNumber,
)
from web.security.roles import Permission, Role, needs

router = ApiRouter(tags=["accounts"])

TokenNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the token.", examples=[1])]
SessionName = Annotated[
    str, Path(pattern=r"^[0-9a-f]{1,128}$", description="Id of the session.", examples=["5f0c2ab19d3e4c07"])
]
Days = Annotated[int, Field(ge=1, le=MAX_DAYS), WholeNumber]


class TokenRequest(RequestBody):
    """New token of the caller."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "nightly", "scope": "operator", "days": 30, "reason": "launches the nightly run"}]
        }
    )

    name: str = Field(
        min_length=1,
        max_length=MAX_NAME_LETTERS,
        pattern=r"^[!-~]([ -~]*[!-~])?$",
        description="Name that states its purpose.",
    )
    scope: Role = Field(
        strict=False, description="Upper limit of its permissions; the user's current role limits them too."
    )
    days: Days = Field(description="Validity in days.")
    reason: Reason


class TokenResponse(ResponseModel):
    """Valid token, without its secret."""

    id: int = Field(description="Number of the token.")
    user: str = Field(description="Name of its user.")
    name: str = Field(description="Name that states its purpose.")
    scope: Role = Field(description="Upper limit of its permissions.")
    created_at: float = Field(description="Unix seconds.")
    expires_at: float = Field(description="Unix seconds.")


class TokenList(ItemList[TokenResponse]):
    """Items, newest first."""


class CreatedTokenResponse(ResponseModel):
    """New token with its secret."""

    token: TokenResponse = Field(description="The token, as in the list.")
    secret: str | None = Field(
        description="Bearer token. Present in the first response only; null when the same key is repeated."
    )


class SessionResponse(ResponseModel):
    """Session of a browser."""

    id: str = Field(description="Id of the session.")
    user: str = Field(description="Name of its user.")
    browser: str = Field(description="User agent.")
    came_from: str = Field(description="Address that opened it.")
    opened_by: str = Field(description="`link`, `password` or `provider`.")
    created_at: float = Field(description="Unix seconds.")
    expires_at: float = Field(description="Unix seconds.")
    is_here: bool = Field(description="Whether it is the caller's session.")


class SessionList(ItemList[SessionResponse]):
    """Items, newest first."""


@router.get("/tokens", response_model=TokenList)
@needs(Permission.OWN)
async def tokens(accounts: AccountsDep, viewer: ViewerDep) -> dict[str, Any]:
    """Lists the caller's valid tokens; for admins all users'."""
    return {"items": [_token(row, user) for row, user in await accounts.tokens.list_for(viewer)]}


@router.post("/tokens", status_code=201, response_model=CreatedTokenResponse)
@needs(Permission.OWN)
async def create_token(change: ChangeDep, accounts: AccountsDep, body: TokenRequest) -> dict[str, Any]:
    """Creates a token of the caller. This response is the only one with its secret."""
    number, secret = await change.once_with_secret(
        lambda: accounts.tokens.create(
            change.viewer, name=body.name, scope=body.scope, days=body.days, reason=body.reason
        )
    )
    rows = await accounts.tokens.list_for(change.viewer)
    created = next(((row, user) for row, user in rows if str(row.id) == number), None)
    if created is None:
        raise HTTPException(
            409, f"cannot return token {number}: it has been revoked; repeat the request with a new Idempotency-Key"
        )
    return {"token": _token(*created), "secret": secret}


@router.post("/tokens/{token_id}/revoke", response_model=MessageResponse)
@needs(Permission.OWN)
async def revoke_token(
    change: ChangeDep, accounts: AccountsDep, token_id: TokenNumber, body: ReasonRequest
) -> dict[str, str]:
    """Revokes one of the caller's tokens, or for admins any token, from the next request on."""
    return await change.message(lambda: accounts.tokens.revoke(token_id, by=change.viewer, reason=body.reason))


@router.get("/sessions", response_model=SessionList)
@needs(Permission.OWN)
async def sessions(accounts: AccountsDep, viewer: ViewerDep) -> dict[str, Any]:
    """Lists the caller's open sessions; for admins all users'."""
    rows = await accounts.sessions.list_for(viewer)
    return {"items": [_session(row, user, here=viewer.session) for row, user in rows]}


@router.post("/sessions/{session_id}/end", response_model=MessageResponse)
@needs(Permission.OWN)
async def end_session(
    change: ChangeDep, accounts: AccountsDep, session_id: SessionName, body: ReasonRequest
) -> dict[str, str]:
    """Ends one of the caller's sessions, or for admins any session."""
    return await change.message(lambda: accounts.sessions.revoke(session_id, by=change.viewer, reason=body.reason))


def _token(row: ApiToken, user: User) -> dict[str, Any]:
    return TokenResponse.values_of(row, user=user.name)


def _session(row: BrowserSession, user: User, *, here: str) -> dict[str, Any]:
    return SessionResponse.values_of(row, id=row.cookie_hash, user=user.name, is_here=row.cookie_hash == here)
