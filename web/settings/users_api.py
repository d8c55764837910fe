"""`/api/v1/users`: users and their global roles, for admins. Changes require a session: a token only lists them."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import ConfigDict, Field

from web.accounts.accounts import Accounts
from web.accounts.users import NAME as USER_NAME
from web.database.tables import MAX_ID, User
from web.requests.dependencies import AccountsDep, OwnAddressDep
from web.rest.changes import Change, ChangeDep
from web.rest.common import ApiRouter, ItemList, Reason, ReasonRequest, RequestBody, ResponseModel
from web.security.roles import Permission, Role, needs

router = ApiRouter(tags=["accounts"])

UserNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the user.", examples=[2])]


class UserRequest(RequestBody):
    """New local user."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "ada", "role": "operator", "reason": "she looks after the pools"}]}
    )

    name: str = Field(pattern=f"^{USER_NAME.pattern}$", description="Login name.")
    role: Role = Field(strict=False, description="Global role, on all runs and pools.")
    reason: Reason


class RoleRequest(RequestBody):
    """New global role of a user."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "viewer", "reason": "moved to another team"}]})

    role: Role = Field(strict=False, description="Global role, on all runs and pools.")
    reason: Reason


class UserResponse(ResponseModel):
    """User account."""

    id: int = Field(description="Number of the user.")
    name: str = Field(description="Login name.")
    role: Role = Field(description="Global role.")
    is_disabled: bool = Field(description="Whether the account is disabled.")
    is_local: bool = Field(description="Whether the user logs in here and not through an OpenID provider.")
    has_password: bool = Field(description="Whether the user has set a password.")
    created_at: float = Field(description="Unix seconds.")


class UserList(ItemList[UserResponse]):
    """All users, by name."""


class InvitationResponse(ResponseModel):
    """User and login link."""

    user: UserResponse = Field(description="The user, as in the list.")
    login_link: str | None = Field(
        description="Works once, for 24 hours. Present in the first response only; null when the same key is repeated."
    )


@router.get("/users", response_model=UserList)
@needs(Permission.ADMINISTER)
async def users(accounts: AccountsDep) -> dict[str, Any]:
    """Lists all users by name, with their global roles."""
    return {"items": [_to_response(user) for user in await accounts.users.all()]}


@router.post("/users", status_code=201, response_model=InvitationResponse)
@needs(Permission.ACCOUNTS)
async def add(
    change: ChangeDep, accounts: AccountsDep, own_address: OwnAddressDep, body: UserRequest
) -> dict[str, Any]:
    """Adds a local user. Returns 409 if the name is taken."""
    name, link = await change.once_with_secret(
        lambda: accounts.users.add(body.name, body.role, by=change.viewer, reason=body.reason)
    )
    return _invitation(next(user for user in await accounts.users.all() if user.name == name), own_address, link)


@router.post("/users/{user_id}/link", response_model=InvitationResponse)
@needs(Permission.ACCOUNTS)
async def invite(
    change: ChangeDep, accounts: AccountsDep, own_address: OwnAddressDep, user_id: UserNumber, body: ReasonRequest
) -> dict[str, Any]:
    """Creates a login link for a local user and voids earlier ones.

    Returns 409 for a disabled or external user, and for `admin`.
    """
    _, link = await change.once_with_secret(
        lambda: accounts.users.invite(user_id, by=change.viewer, reason=body.reason)
    )
    return _invitation(await accounts.users.user(user_id), own_address, link)


@router.put("/users/{user_id}/role", response_model=UserResponse)
@needs(Permission.ACCOUNTS)
async def set_role(change: ChangeDep, accounts: AccountsDep, user_id: UserNumber, body: RoleRequest) -> dict[str, Any]:
    """Changes a user's global role from the next request on. Returns 409 for the caller itself and for `admin`."""
    await change.once(lambda: accounts.users.set_role(user_id, body.role, by=change.viewer, reason=body.reason))
    return _to_response(await accounts.users.user(user_id))


@router.post("/users/{user_id}/disable", response_model=UserResponse)
@needs(Permission.ACCOUNTS)
async def disable(change: ChangeDep, accounts: AccountsDep, user_id: UserNumber, body: ReasonRequest) -> dict[str, Any]:
    """Disables a user and ends all sessions, links and tokens. Returns 409 for the caller itself and for `admin`."""
    return await _set_disabled(change, accounts, user_id, is_disabled=True, reason=body.reason)


@router.post("/users/{user_id}/enable", response_model=UserResponse)
@needs(Permission.ACCOUNTS)
async def enable(change: ChangeDep, accounts: AccountsDep, user_id: UserNumber, body: ReasonRequest) -> dict[str, Any]:
    """Enables a disabled user, without the former tokens. Returns 409 for the caller itself and for `admin`."""
    return await _set_disabled(change, accounts, user_id, is_disabled=False, reason=body.reason)


async def _set_disabled(
    change: Change, accounts: Accounts, user_id: int, *, is_disabled: bool, reason: str
) -> dict[str, Any]:
    await change.once(
        lambda: accounts.users.set_disabled(user_id, is_disabled=is_disabled, by=change.viewer, reason=reason)
    )
    return _to_response(await accounts.users.user(user_id))


def _invitation(user: User, own_address: str, link: str | None) -> dict[str, Any]:
    return {"user": _to_response(user), "login_link": f"{own_address}/login?token={link}" if link else None}


def _to_response(user: User) -> dict[str, Any]:
    return UserResponse.values_of(
        user,
        is_disabled=user.disabled_at is not None,
        is_local=user.identity is None,
        has_password=user.password_hash is not None,
    )
