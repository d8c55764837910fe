"""`/healthz`: liveness of the web process."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from web.request_context import RequestContextDep
from web.security.roles import Permission, needs

router = APIRouter()


@router.get("/healthz")
@needs(Permission.NOTHING)
async def health(context: RequestContextDep) -> Response:
    """Returns liveness and the state of the connection to dataflow. No facts of the run: it requires no login."""
    age_s = context.state.age_s
    return JSONResponse(
        {
            "status": "ok",
            "feed": context.state.connection.state.value,
            "data_age_s": None if age_s is None else round(age_s, 2),
        }
    )
