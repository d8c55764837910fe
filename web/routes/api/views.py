"""`/api/v1/views`: addresses of pages under names. They are one's own, and a session is needed to change them."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from web.acts.fleet import answered_once
from web.door.roles import Need, needs
from web.parts import PartsOf, ViewerOf
from web.reading.views import LONGEST_ADDRESS, LONGEST_NAME
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.terms import LARGEST, PREFIX, SENT, Body, Filled, Key, Reason, Said, refusals
from web.tables import SavedView

router = APIRouter(prefix=PREFIX, tags=["views"])

ViewNumber = Annotated[int, Path(ge=1, le=LARGEST, description="Id of the view.", examples=[1])]


class ViewAsked(Body):
    """A page under a name."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "lost nodes", "address": "/nodes?state=lost", "reason": "looked at each morning"}]
        }
    )

    name: str = Field(min_length=1, max_length=LONGEST_NAME, pattern=r"^[!-~]([ -~]*[!-~])?$")
    address: str = Field(
        max_length=LONGEST_ADDRESS, pattern=r"^/([A-Za-z0-9._~?&=%+:-][!-~]*)?$", description="From its first slash on."
    )
    reason: Reason


class ViewAnswer(Filled):
    """A page under a name."""

    id: int
    name: str
    address: str
    created_at: float = Field(description="Unix seconds.")


class ViewList(Filled):
    """By name."""

    items: list[ViewAnswer]


@router.get("/views", response_model=ViewList, responses=refusals())
@needs(Need.READ)
async def views(parts: PartsOf, viewer: ViewerOf) -> dict[str, Any]:
    """One's own saved views, by name."""
    return {"items": [_answer(view) for view in await parts.views.of(viewer.user_id)]}


@router.post("/views", status_code=201, response_model=ViewAnswer, responses=refusals(*SENT))
@needs(Need.OWN)
async def save(parts: PartsOf, viewer: ViewerOf, body: ViewAsked, key: Key) -> dict[str, Any]:
    """Save a view, in place of one's own of the same name."""

    async def asked() -> str:
        return await parts.views.save(viewer, body.name, body.address, reason=body.reason)

    name = await answered_once(parts, viewer, asked, key=key, asked_for=json.dumps(["view", body.model_dump()]))
    found = next((view for view in await parts.views.of(viewer.user_id) if view.name == name), None)
    if found is None:
        raise HTTPException(409, f"the view {name} was deleted since: ask again under a new key")
    return _answer(found)


@router.post("/views/{view_id}/delete", response_model=Said, responses=refusals(404, *SENT))
@needs(Need.OWN)
async def delete(parts: PartsOf, viewer: ViewerOf, view_id: ViewNumber, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Forget one of one's own views."""

    async def asked() -> str:
        if not any(view.id == view_id for view in await parts.views.of(viewer.user_id)):
            raise HTTPException(404, f"there is no view {view_id} of yours (any more)")
        return f"the view {await parts.views.delete(viewer, view_id, reason=body.reason)} is deleted"

    asked_for = json.dumps(["delete view", view_id, body.reason])
    return {"message": await answered_once(parts, viewer, asked, key=key, asked_for=asked_for)}


def _answer(view: SavedView) -> dict[str, Any]:
    return view.model_dump(exclude={"user_id"})
