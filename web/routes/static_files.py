"""`/static/{build}/...`: static files of the pages, identical for all users."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from web.rendering import STATIC, build_stamp
from web.security.roles import Permission, needs
from web.static_files import FILES, files

router = APIRouter()


@needs(Permission.NOTHING)
async def show(request: Request) -> Response:
    """Returns a static file of this release; answers 404 for any other release."""
    if request.path_params["build"] != build_stamp():
        raise HTTPException(404)
    return files(STATIC).response(request, request.path_params["path"])


# Static files contain no secrets, so compressing them is safe; pages contain secrets and are sent uncompressed.
router.add_route(f"{FILES}{{build}}/{{path:path}}", show)
