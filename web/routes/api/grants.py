"""`/api/v1/grants`: roles on one run or pool, for administrators."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Conflict
from web.accounts.grants import LONGEST_RUN, Holding
from web.accounts.queries import id_of
from web.accounts.viewer import Viewer
from web.acts.fleet import answered_once
from web.door.places import Place
from web.door.roles import Need, Role, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.terms import LARGEST, NAME, PREFIX, SENT, Body, Filled, Key, Reason, refusals

router = APIRouter(prefix=PREFIX, tags=["grants"])

GrantNumber = Annotated[int, Path(ge=1, le=LARGEST, description="Id of the grant.", examples=[1])]
GrantedRole = Literal["agent", "operator", "admin"]


class GrantAsked(Body):
    """A role for somebody on a run, or on one pool of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"user": "ada", "role": "operator", "run": "reverse", "pool": "eu", "reason": "her pool"}]
        }
    )

    user: str = Field(min_length=1, max_length=200, description="Whose it is; of a token, its user.")
    token: str = Field("", max_length=60, description="Name of one of the user's tokens, which then has it instead.")
    role: GrantedRole = Field(description="What else the table of roles knows, everybody has everywhere.")
    run: str = Field(
        min_length=1, max_length=LONGEST_RUN, pattern=r"^[!-~]([ -~]*[!-~])?$", description="Name of the run."
    )
    pool: Annotated[str, Field(pattern=NAME)] | None = Field(None, description="One of its pools; all of it if absent.")
    reason: Reason


class GrantAnswer(Filled):
    """A role that somebody has on a run or a pool."""

    id: int
    user: str
    token: str = Field(description="The user's token that has it; empty for the user.")
    role: GrantedRole
    run: str
    pool: str = Field(description="Empty for all of the run.")
    granted_by: str
    created_at: float = Field(description="Unix seconds.")


class GrantList(Filled):
    """All of them."""

    items: list[GrantAnswer]


class TakenAnswer(Filled):
    """What came of it."""

    message: str


@router.get("/grants", response_model=GrantList, responses=refusals())
@needs(Need.ADMINISTER)
async def grants(parts: PartsOf) -> dict[str, Any]:
    """Who has which role where, besides the one that they have everywhere; by user, run and pool."""
    return {"items": [_answer(holding) for holding in await parts.accounts.grants.all()]}


@router.post("/grants", status_code=201, response_model=GrantAnswer, responses=refusals(404, *SENT))
@needs(Need.ADMINISTER)
async def give(parts: PartsOf, viewer: ViewerOf, body: GrantAsked, key: Key) -> dict[str, Any]:
    """Grant a role on a run or a pool. Another role that they have at the same place is replaced.

    409 for oneself, for `admin`, and for a token's name that several have.
    """
    user_id, token_id = await _holder(parts, viewer, body)
    place = Place(run=body.run, pool=body.pool or "")

    async def asked() -> str:
        role = Role(body.role)
        return str(
            await parts.accounts.grants.give(user_id, role, place, by=viewer, token_id=token_id, reason=body.reason)
        )

    grant_id = await answered_once(parts, viewer, asked, key=key, asked_for=json.dumps(["grant", body.model_dump()]))
    found = next((one for one in await parts.accounts.grants.all() if str(one[0].id) == grant_id), None)
    if found is None:
        raise HTTPException(409, f"grant {grant_id} was taken back since: ask again under a new key")
    return _answer(found)


@router.post("/grants/{grant_id}/take", response_model=TakenAnswer, responses=refusals(404, *SENT))
@needs(Need.ADMINISTER)
async def take(parts: PartsOf, viewer: ViewerOf, grant_id: GrantNumber, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Take a grant back: from the next request on they have there what they have everywhere."""

    async def asked() -> str:
        if not any(one[0].id == grant_id for one in await parts.accounts.grants.all()):
            raise HTTPException(404, f"there is no grant {grant_id} (any more)")
        return await parts.accounts.grants.take(grant_id, by=viewer, reason=body.reason)

    said = await answered_once(parts, viewer, asked, key=key, asked_for=json.dumps(["take", grant_id, body.reason]))
    return {"message": said}


async def _holder(parts: Parts, viewer: Viewer, body: GrantAsked) -> tuple[int, int | None]:
    """Ids of the user and of the token that are named. Raises: HTTPException for one that there is not."""
    user = next((user for user in await parts.accounts.users.all() if user.name == body.user), None)
    if user is None:
        raise HTTPException(404, f"no user is called {body.user}")
    if not body.token:
        return id_of(user), None
    tokens = await parts.accounts.tokens.of(viewer, of_all=True)
    found = [token.id for token, owner in tokens if owner.id == user.id and token.name == body.token]
    if not found:
        raise HTTPException(404, f"{user.name} has no token called {body.token} that is good")
    if len(found) > 1:
        raise Conflict(f"{user.name} has {len(found)} tokens called {body.token}: choose one under Settings")
    return id_of(user), found[0]


def _answer(holding: Holding) -> dict[str, Any]:
    row, user, token = holding
    return {
        "id": row.id,
        "user": user.name,
        "token": token.name if token is not None else "",
        "role": row.role,
        "run": row.run,
        "pool": row.pool,
        "granted_by": row.granted_by,
        "created_at": row.created_at,
    }
