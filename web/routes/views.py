"""`/views`: pages as one set them up, under names."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError
from web.acts.steering import told
from web.door.addresses import local_path
from web.door.flash import Flash
from web.door.roles import Need, needs
from web.parts import PartsOf, ViewerOf
from web.present.shell import shell

router = APIRouter()


@router.get("/views")
@needs(Need.READ)
async def show(
    request: Request, parts: PartsOf, viewer: ViewerOf, of: Annotated[str, Query(max_length=2000)] = "/"
) -> Response:
    """One's own views, and a form that saves the page `of`."""
    return parts.pages.page(
        request,
        "views/page.html",
        page="views",
        shell=shell(parts.state, parts.settings),
        views=await parts.views.of(viewer.user_id),
        address=local_path(of),
    )


@router.post("/views")
@needs(Need.OWN)
async def save(parts: PartsOf, viewer: ViewerOf, name: str = Form(""), address: str = Form("/")) -> Response:
    """Save a view, in place of one of the same name."""
    back = local_path(address)
    try:
        kept = await parts.views.save(viewer, name, address)
    except AstraFlowError as problem:
        return told(Flash(text=f"The view was not saved: {problem}", tone="bad"), back=back)
    return told(Flash(text=f"this view is saved as {kept}", tone="good"), back=back)


@router.post("/views/{view_id}/delete")
@needs(Need.OWN)
async def delete(parts: PartsOf, viewer: ViewerOf, view_id: int) -> Response:
    """Forget a view."""
    try:
        name = await parts.views.delete(viewer, view_id)
    except AstraFlowError as problem:
        return told(Flash(text=f"Nothing was deleted: {problem}", tone="bad"), back="/views")
    return told(Flash(text=f"the view {name} is deleted", tone="good"), back="/views")
