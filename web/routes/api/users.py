"""`/api/v1/users`: who there is, in which role, for administrators."""

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from web.accounts.queries import id_of
from web.accounts.users import NAME as USER_NAME
from web.accounts.viewer import Viewer
from web.acts.fleet import answered_once
from web.door.addresses import own_address
from web.door.roles import Need, Role, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.terms import LARGEST, PREFIX, SENT, Body, Filled, Key, Reason, refusals
from web.tables import User

router = APIRouter(prefix=PREFIX, tags=["accounts"])

RoleName = Literal["viewer", "agent", "operator", "admin"]
UserNumber = Annotated[int, Path(ge=1, le=LARGEST, description="Id of the user.", examples=[2])]


class UserAsked(Body):
    """A new local user."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "ada", "role": "operator", "reason": "she looks after the pools"}]}
    )

    name: str = Field(pattern=f"^{USER_NAME.pattern}$", description="With which they log in.")
    role: RoleName = Field(description="What they have everywhere.")
    reason: Reason


class RoleAsked(Body):
    """Another role."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "viewer", "reason": "moved to another team"}]})

    role: RoleName
    reason: Reason


class UserAnswer(Filled):
    """Somebody who may come in."""

    id: int
    name: str
    role: RoleName
    is_disabled: bool = Field(description="Whether they are locked out.")
    is_local: bool = Field(description="Whether they log in here, rather than through a provider.")
    has_password: bool
    created_at: float = Field(description="Unix seconds.")


class UserList(Filled):
    """Everybody, by name."""

    items: list[UserAnswer]


class InvitedAnswer(Filled):
    """Somebody, and the link with which they come in."""

    user: UserAnswer
    login_link: str | None = Field(
        description="Works once, for 24 hours. In the first answer alone: null when the same key is sent again."
    )


@router.get("/users", response_model=UserList, responses=refusals())
@needs(Need.ADMINISTER)
async def users(parts: PartsOf) -> dict[str, Any]:
    """Everybody, by name, with the role that they have everywhere."""
    return {"items": [_answer(user) for user in await parts.accounts.users.all()]}


@router.post("/users", status_code=201, response_model=InvitedAnswer, responses=refusals(*SENT))
@needs(Need.ADMINISTER)
async def add(request: Request, parts: PartsOf, viewer: ViewerOf, body: UserAsked, key: Key) -> dict[str, Any]:
    """Add a local user. 409 for a name that is taken."""
    link = ""

    async def asked() -> str:
        nonlocal link
        link = await parts.accounts.users.add(body.name, Role(body.role), by=viewer, reason=body.reason)
        return body.name

    name = await answered_once(parts, viewer, asked, key=key, asked_for=json.dumps(["user", body.model_dump()]))
    user = next(user for user in await parts.accounts.users.all() if user.name == name)
    return {"user": _answer(user), "login_link": _address(request, parts, link)}


@router.post("/users/{user_id}/link", response_model=InvitedAnswer, responses=refusals(404, *SENT))
@needs(Need.ADMINISTER)
async def invite(
    request: Request, parts: PartsOf, viewer: ViewerOf, user_id: UserNumber, body: ReasonOnly, key: Key
) -> dict[str, Any]:
    """A new login link for a local user; earlier ones stop working. 409 for who is locked out or has a provider."""
    link = ""

    async def asked() -> str:
        nonlocal link
        name, link = await parts.accounts.users.invite(user_id, by=viewer, reason=body.reason)
        return name

    user = await _changed(parts, viewer, user_id, asked, key=key, asked_for=["link", user_id, body.reason])
    return {"user": user, "login_link": _address(request, parts, link)}


@router.put("/users/{user_id}/role", response_model=UserAnswer, responses=refusals(404, *SENT))
@needs(Need.ADMINISTER)
async def set_role(parts: PartsOf, viewer: ViewerOf, user_id: UserNumber, body: RoleAsked, key: Key) -> dict[str, Any]:
    """Give a user another role, from their next request on. 409 for oneself, and for `admin`."""

    async def asked() -> str:
        return await parts.accounts.users.set_role(user_id, Role(body.role), by=viewer, reason=body.reason)

    return await _changed(parts, viewer, user_id, asked, key=key, asked_for=["role", user_id, body.model_dump()])


@router.post("/users/{user_id}/disable", response_model=UserAnswer, responses=refusals(404, *SENT))
@needs(Need.ADMINISTER)
async def disable(parts: PartsOf, viewer: ViewerOf, user_id: UserNumber, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Lock a user out: their sessions, links and tokens end now. 409 for oneself, and for `admin`."""
    return await _set_disabled(parts, viewer, user_id, is_disabled=True, reason=body.reason, key=key)


@router.post("/users/{user_id}/enable", response_model=UserAnswer, responses=refusals(404, *SENT))
@needs(Need.ADMINISTER)
async def enable(parts: PartsOf, viewer: ViewerOf, user_id: UserNumber, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Let a user in again; their tokens have to be made anew. 409 for oneself, and for `admin`."""
    return await _set_disabled(parts, viewer, user_id, is_disabled=False, reason=body.reason, key=key)


async def _set_disabled(
    parts: Parts, viewer: Viewer, user_id: int, *, is_disabled: bool, reason: str, key: str
) -> dict[str, Any]:
    async def asked() -> str:
        return await parts.accounts.users.set_disabled(user_id, is_disabled=is_disabled, by=viewer, reason=reason)

    return await _changed(parts, viewer, user_id, asked, key=key, asked_for=["lock", user_id, is_disabled, reason])


async def _changed(
    parts: Parts, viewer: Viewer, user_id: int, asked: Callable[[], Awaitable[str]], *, key: str, asked_for: list[Any]
) -> dict[str, Any]:
    """Do it once for the key; the user as they are then. Raises: HTTPException for one that there is not."""
    await _known(parts, user_id)
    await answered_once(parts, viewer, asked, key=key, asked_for=json.dumps(asked_for))
    return _answer(await _known(parts, user_id))


async def _known(parts: Parts, user_id: int) -> User:
    user = next((user for user in await parts.accounts.users.all() if user.id == user_id), None)
    if user is None:
        raise HTTPException(404, f"there is no user {user_id}")
    return user


def _address(request: Request, parts: Parts, link: str) -> str | None:
    return f"{own_address(request.headers['host'], parts.settings)}/login?token={link}" if link else None


def _answer(user: User) -> dict[str, Any]:
    return {
        "id": id_of(user),
        "name": user.name,
        "role": user.role,
        "is_disabled": user.disabled_at is not None,
        "is_local": user.identity is None,
        "has_password": user.password_hash is not None,
        "created_at": user.created_at,
    }
