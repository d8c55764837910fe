"""`/api/v1/users`: users and their global roles, for admins. Changes require a session: a token only lists them."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from web.accounts.accounts import Accounts
from web.accounts.queries import id_of
from web.accounts.users import NAME as USER_NAME
from web.database.tables import MAX_ID, User
from web.requests.commands import Commands
from web.requests.dependencies import AccountsDep, CommandsDep, OwnAddressDep
from web.rest.common import (
    BODY_ERRORS,
    PREFIX,
    ItemList,
    Key,
    Reason,
    ReasonRequest,
    RequestBody,
    ResponseModel,
    error_responses,
)
from web.security.roles import Permission, Role, needs

router = APIRouter(prefix=PREFIX, tags=["accounts"])

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


@router.get("/users", response_model=UserList, responses=error_responses())
@needs(Permission.ADMINISTER)
async def users(accounts: AccountsDep) -> dict[str, Any]:
    """Lists all users by name, with their global roles."""
    return {"items": [_to_response(user) for user in await accounts.users.all()]}


@router.post("/users", status_code=201, response_model=InvitationResponse, responses=error_responses(*BODY_ERRORS))
@needs(Permission.ACCOUNTS)
async def add(
    commands: CommandsDep, accounts: AccountsDep, own_address: OwnAddressDep, body: UserRequest, key: Key
) -> dict[str, Any]:
    """Adds a local user. Returns 409 if the name is taken."""
    link = ""

    async def command() -> str:
        nonlocal link
        link = await accounts.users.add(body.name, body.role, by=commands.viewer, reason=body.reason)
        return body.name

    name = await commands.once(command, key=key, request=["user", body])
    user = next(user for user in await accounts.users.all() if user.name == name)
    return {"user": _to_response(user), "login_link": f"{own_address}/login?token={link}" if link else None}


@router.post("/users/{user_id}/link", response_model=InvitationResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.ACCOUNTS)
async def invite(
    commands: CommandsDep,
    accounts: AccountsDep,
    own_address: OwnAddressDep,
    user_id: UserNumber,
    body: ReasonRequest,
    key: Key,
) -> dict[str, Any]:
    """Creates a login link for a local user and voids earlier ones.

    Returns 409 for a disabled or external user, and for `admin`.
    """
    link = ""

    async def command() -> str:
        nonlocal link
        name, link = await accounts.users.invite(user_id, by=commands.viewer, reason=body.reason)
        return name

    user = await _changed(commands, accounts, user_id, command, key=key, request=["link", user_id, body.reason])
    return {"user": user, "login_link": f"{own_address}/login?token={link}" if link else None}


@router.put("/users/{user_id}/role", response_model=UserResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.ACCOUNTS)
async def set_role(
    commands: CommandsDep, accounts: AccountsDep, user_id: UserNumber, body: RoleRequest, key: Key
) -> dict[str, Any]:
    """Changes a user's global role from the next request on. Returns 409 for the caller itself and for `admin`."""

    async def command() -> str:
        return await accounts.users.set_role(user_id, body.role, by=commands.viewer, reason=body.reason)

    return await _changed(commands, accounts, user_id, command, key=key, request=["role", user_id, body])


@router.post("/users/{user_id}/disable", response_model=UserResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.ACCOUNTS)
async def disable(
    commands: CommandsDep, accounts: AccountsDep, user_id: UserNumber, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Disables a user and ends all sessions, links and tokens. Returns 409 for the caller itself and for `admin`."""
    return await _set_disabled(commands, accounts, user_id, is_disabled=True, reason=body.reason, key=key)


@router.post("/users/{user_id}/enable", response_model=UserResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.ACCOUNTS)
async def enable(
    commands: CommandsDep, accounts: AccountsDep, user_id: UserNumber, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Enables a disabled user, without the former tokens. Returns 409 for the caller itself and for `admin`."""
    return await _set_disabled(commands, accounts, user_id, is_disabled=False, reason=body.reason, key=key)


async def _set_disabled(
    commands: Commands, accounts: Accounts, user_id: int, *, is_disabled: bool, reason: str, key: str
) -> dict[str, Any]:
    async def command() -> str:
        return await accounts.users.set_disabled(user_id, is_disabled=is_disabled, by=commands.viewer, reason=reason)

    return await _changed(commands, accounts, user_id, command, key=key, request=["lock", user_id, is_disabled, reason])


async def _changed(
    commands: Commands,
    accounts: Accounts,
    user_id: int,
    command: Callable[[], Awaitable[str]],
    *,
    key: str,
    request: object,
) -> dict[str, Any]:
    """Runs the command once per key and returns the changed user. Raises: HTTPException for an unknown user."""
    await _require_user(accounts, user_id)
    await commands.once(command, key=key, request=request)
    return _to_response(await _require_user(accounts, user_id))


async def _require_user(accounts: Accounts, user_id: int) -> User:
    user = next((user for user in await accounts.users.all() if user.id == user_id), None)
    if user is None:
        raise HTTPException(404, f"cannot find user {user_id}: it does not exist; list users with GET {PREFIX}/users")
    return user


def _to_response(user: User) -> dict[str, Any]:
    return {
        "id": id_of(user),
        "name": user.name,
        "role": user.role,
        "is_disabled": user.disabled_at is not None,
        "is_local": user.identity is None,
        "has_password": user.password_hash is not None,
        "created_at": user.created_at,
    }
