"""`/views`: saved views, which are named page addresses of a user."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError
from web.requests.dependencies import PagesDep, ViewerDep, ViewsDep
from web.requests.redirects import redirect_with_flash
from web.security.addresses import local_path
from web.security.flash import Flash
from web.security.roles import Permission, needs

router = APIRouter()


@router.get("/views")
@needs(Permission.READ)
async def show(
    request: Request,
    pages: PagesDep,
    views: ViewsDep,
    viewer: ViewerDep,
    of: Annotated[str, Query(max_length=2000)] = "/",
) -> Response:
    """Shows the user's saved views and a form that saves the page `of`."""
    return pages.page(
        request, "saved_views/page.html", page="views", views=await views.of(viewer.user_id), address=local_path(of)
    )


@router.post("/views")
@needs(Permission.OWN)
async def save(views: ViewsDep, viewer: ViewerDep, name: str = Form(""), address: str = Form("/")) -> Response:
    """Saves a view, replacing the user's view of the same name."""
    back = local_path(address)
    try:
        saved_name = await views.save(viewer, name, address)
    except AstraFlowError as problem:
        return redirect_with_flash(Flash.failure("The view was not saved", problem), page=back)
    return redirect_with_flash(Flash(text=f"view saved as {saved_name}", tone="good"), page=back)


@router.post("/views/{view_id}/delete")
@needs(Permission.OWN)
async def delete(views: ViewsDep, viewer: ViewerDep, view_id: int) -> Response:
    """Deletes a view."""
    try:
        name = await views.delete(viewer, view_id)
    except AstraFlowError as problem:
        return redirect_with_flash(Flash.failure("Nothing was deleted", problem), page="/views")
    return redirect_with_flash(Flash(text=f"view {name} deleted", tone="good"), page="/views")
