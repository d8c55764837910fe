"""`/healthz`: is this process well."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from web.door.roles import Need, needs
from web.parts import PartsOf

router = APIRouter()


@router.get("/healthz")
@needs(Need.NOTHING)
async def health(parts: PartsOf) -> Response:
    """Alive; and whether the feed is. Says nothing about the run: it needs no login."""
    age_s = parts.state.age_s
    return JSONResponse(
        {
            "status": "ok",
            "feed": parts.state.feed.state.value,
            "data_age_s": None if age_s is None else round(age_s, 2),
        }
    )
