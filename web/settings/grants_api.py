"""`/api/v1/grants`: roles on one run or pool, for admins. Changes require a session: a token only lists them."""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Conflict
from web.accounts.accounts import Accounts
from web.accounts.grants import MAX_RUN_NAME_LETTERS, HeldGrant
from web.accounts.queries import id_of
from web.accounts.viewer import Viewer
from web.database.tables import MAX_ID
from web.requests.dependencies import AccountsDep
from web.rest.changes import ChangeDep
from web.rest.common import (
    NAME,
    PREFIX,
    WITHOUT_NUL,
    ApiRouter,
    ItemList,
    MessageResponse,
    Reason,
    ReasonRequest,
    RequestBody,
    ResponseModel,
    error_responses,
)
from web.security.roles import Permission, Resource, Role, needs

router = ApiRouter(tags=["grants"])

GrantNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the grant.", examples=[1])]
GrantedRole = Literal["agent", "operator", "admin"]


class GrantRequest(RequestBody):
    """Role for a user or token on a run, or on one of its pools."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"user": "ada", "role": "operator", "run": "reverse", "pool": "eu", "reason": "her pool"}]
        }
    )

    user: str = Field(
        min_length=1, max_length=200, pattern=WITHOUT_NUL, description="Name of the user; for a token, its owner."
    )
    token: str = Field(
        "",
        max_length=60,
        pattern=WITHOUT_NUL,
        description="Name of one of the user's tokens, which then holds the role instead.",
    )
    role: GrantedRole = Field(description="Role on the run or pool. The role viewer is global only.")
    run: str = Field(
        min_length=1, max_length=MAX_RUN_NAME_LETTERS, pattern=r"^[!-~]([ -~]*[!-~])?$", description="Name of the run."
    )
    pool: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="One of its pools; the whole run if absent."
    )
    reason: Reason


class GrantResponse(ResponseModel):
    """Role of a user or token on a run or a pool."""

    id: int = Field(description="Number of the grant.")
    user: str = Field(description="Name of the user.")
    token: str = Field(description="The user's token that holds the role; empty for the user.")
    role: GrantedRole = Field(description="Role that the grant gives.")
    run: str = Field(description="Name of the run.")
    pool: str = Field(description="Empty for the whole run.")
    granted_by: str = Field(description="Name of the admin who granted it.")
    created_at: float = Field(description="Unix seconds.")


class GrantList(ItemList[GrantResponse]):
    """All grants."""


@router.get("/grants", response_model=GrantList)
@needs(Permission.ADMINISTER)
async def grants(accounts: AccountsDep) -> dict[str, Any]:
    """Lists grants by user, run and pool. Global roles are not included."""
    return {"items": [_to_response(holding) for holding in await accounts.grants.all()]}


@router.post("/grants", status_code=201, response_model=GrantResponse, responses=error_responses(404))
@needs(Permission.ACCOUNTS)
async def grant(change: ChangeDep, accounts: AccountsDep, body: GrantRequest) -> dict[str, Any]:
    """Grants a role on a run or a pool, replacing the holder's former role there.

    Returns 409 for the caller itself, for `admin`, and for an ambiguous token name.
    """
    user_id, token_id = await _holder(accounts, change.viewer, body)
    resource = Resource(run=body.run, pool=body.pool or "")
    grant_id = await change.once(
        lambda: accounts.grants.grant(
            user_id, Role(body.role), resource, by=change.viewer, token_id=token_id, reason=body.reason
        )
    )
    held_grant = next((row for row in await accounts.grants.all() if str(row[0].id) == grant_id), None)
    if held_grant is None:
        raise HTTPException(
            409, f"cannot return grant {grant_id}: it has been revoked; repeat the request with a new Idempotency-Key"
        )
    return _to_response(held_grant)


@router.post("/grants/{grant_id}/revoke", response_model=MessageResponse)
@needs(Permission.ACCOUNTS)
async def revoke(
    change: ChangeDep, accounts: AccountsDep, grant_id: GrantNumber, body: ReasonRequest
) -> dict[str, str]:
    """Revokes a grant: from the next request on, only the holder's global role applies there."""
    return await change.message(lambda: accounts.grants.revoke(grant_id, by=change.viewer, reason=body.reason))


async def _holder(accounts: Accounts, viewer: Viewer, body: GrantRequest) -> tuple[int, int | None]:
    """Returns the ids of the named user and token. Raises: HTTPException if one does not exist."""
    user = next((user for user in await accounts.users.all() if user.name == body.user), None)
    if user is None:
        raise HTTPException(
            404, f"cannot find user {body.user!r}: it does not exist; list users with GET {PREFIX}/users"
        )
    if not body.token:
        return id_of(user), None
    tokens = await accounts.tokens.list_for(viewer)
    token_ids = [token.id for token, owner in tokens if owner.id == user.id and token.name == body.token]
    if not token_ids:
        raise HTTPException(
            404, f"cannot find token {body.token!r}: {user.name} has no valid token of this name; create it first"
        )
    if len(token_ids) > 1:
        raise Conflict(
            f"cannot grant a role to token {body.token!r}: {user.name} has {len(token_ids)} tokens of this name; "
            "grant it under Settings, where tokens have ids",
            code="grant.ambiguous_token",
        )
    return id_of(user), token_ids[0]


def _to_response(holding: HeldGrant) -> dict[str, Any]:
    row, user, token = holding
    return GrantResponse.values_of(row, user=user.name, token=token.name if token is not None else "")
