"""`/api/v1/views`: saved views, which are named page addresses of a user. Changing them requires a session."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from web.accounts.saved_views import MAX_ADDRESS_CHARS, MAX_NAME_CHARS
from web.database.tables import MAX_ID, SavedView
from web.requests.dependencies import CommandsDep, ViewerDep, ViewsDep
from web.rest.common import (
    BODY_ERRORS,
    PREFIX,
    ItemList,
    Key,
    MessageResponse,
    Reason,
    ReasonRequest,
    RequestBody,
    ResponseModel,
    error_responses,
)
from web.rest.contract_models import fields_of
from web.security.roles import Permission, needs

router = APIRouter(prefix=PREFIX, tags=["views"])

ViewNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the view.", examples=[1])]


class ViewRequest(RequestBody):
    """Named page address to save."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "lost nodes", "address": "/nodes?state=lost", "reason": "looked at each morning"}]
        }
    )

    name: str = Field(
        min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[!-~]([ -~]*[!-~])?$", description="Name of the view."
    )
    address: str = Field(
        max_length=MAX_ADDRESS_CHARS,
        pattern=r"^/([A-Za-z0-9._~?&=%+:-][!-~]*)?$",
        description="Path and query of the page, from the first slash.",
    )
    reason: Reason


@fields_of(SavedView, without=("user_id",))
class ViewResponse(ResponseModel):
    """Saved view."""

    id: int = Field(description="Number of the view.")


class ViewList(ItemList[ViewResponse]):
    """Saved views, by name."""


@router.get("/views", response_model=ViewList, responses=error_responses())
@needs(Permission.READ)
async def views(views: ViewsDep, viewer: ViewerDep) -> dict[str, Any]:
    """Lists the caller's saved views by name."""
    return {"items": await views.of(viewer.user_id)}


@router.post("/views", status_code=201, response_model=ViewResponse, responses=error_responses(*BODY_ERRORS))
@needs(Permission.OWN)
async def save(commands: CommandsDep, views: ViewsDep, viewer: ViewerDep, body: ViewRequest, key: Key) -> SavedView:
    """Saves a view, replacing the caller's view of the same name."""

    async def command() -> str:
        return await views.save(viewer, body.name, body.address, reason=body.reason)

    name = await commands.once(command, key=key, request_text=json.dumps(["view", body.model_dump()]))
    saved_view = next((view for view in await views.of(viewer.user_id) if view.name == name), None)
    if saved_view is None:
        raise HTTPException(
            409, f"cannot return view {name!r}: it has been deleted; repeat the request with a new Idempotency-Key"
        )
    return saved_view


@router.post("/views/{view_id}/delete", response_model=MessageResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.OWN)
async def delete(
    commands: CommandsDep, views: ViewsDep, viewer: ViewerDep, view_id: ViewNumber, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Deletes one of the caller's views."""

    async def command() -> str:
        if not any(view.id == view_id for view in await views.of(viewer.user_id)):
            raise HTTPException(
                404, f"cannot delete view {view_id}: you have no view with this id; list them with GET {PREFIX}/views"
            )
        return f"view {await views.delete(viewer, view_id, reason=body.reason)} deleted"

    asked_for = json.dumps(["delete view", view_id, body.reason])
    return {"message": await commands.once(command, key=key, request_text=asked_for)}
