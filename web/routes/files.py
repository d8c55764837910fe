"""`/static/{build}/...`: the files that pages load, the same for everybody."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from web.door.roles import Need, needs
from web.files import FILES, files
from web.rendering import STATIC, build_stamp

router = APIRouter()


@needs(Need.NOTHING)
async def show(request: Request) -> Response:
    """One file of this release; those of another one are not here."""
    if request.path_params["build"] != build_stamp():
        raise HTTPException(404)
    return files(STATIC).answer(request, request.path_params["path"])


# They hold no secret, so that packing them tells nobody anything; pages do, and are sent as they are.
router.add_route(f"{FILES}{{build}}/{{path:path}}", show)
