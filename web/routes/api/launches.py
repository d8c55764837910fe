"""`/api/v1/launches`: runs that are started from here, and looking after them."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from web.launching import acts
from web.launching.launcher import LOG, Launch, UnknownRun, tail
from web.launching.options import LaunchOptions, reachable
from web.parts import PartsOf, ViewerOf
from web.roles import Need, On, needs
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.terms import NAME, PREFIX, SENT, Body, Filled, Key, Limit, Reason, refusals

router = APIRouter(prefix=PREFIX, tags=["launches"])

MOST_SETTINGS = 200
LARGEST_LIMIT_S = 1e7

StateName = Literal["starting", "running", "ended"]
RunName = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="Name of the run.", examples=["smoke-20260101"]),
]
KEY = r"^[A-Za-z0-9_.\-]{1,200}$"
SettingKey = Annotated[str, StringConstraints(pattern=KEY)]
SettingText = Annotated[str, StringConstraints(max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$")]
Setting = bool | int | Annotated[float, Field(allow_inf_nan=False)] | SettingText | None

_EXAMPLE: dict[str, Any] = {
    "recipe": "smoke",
    "set": {"stop.steps": 200},
    "ends_by_itself": True,
    "reason": "a first look",
}
_CLONE: dict[str, Any] = {"of": "smoke-20260101-000000-0000", "set": {"trainer.seed": 2}, "reason": "another seed"}


class _Asked(Body):
    set: dict[SettingKey, Setting] = Field(
        default_factory=dict,
        max_length=MOST_SETTINGS,
        description="Settings that differ, each by its key.",
        json_schema_extra={"propertyNames": {"pattern": KEY}},
    )
    fleet: bool | None = Field(
        None,
        description="A fleet service starts its nodes and sizes their pools. Left out: as the recipe asks, or as the "
        "earlier run was launched.",
    )
    ends_by_itself: bool | None = Field(
        None, description="It ends when it has learned, or may go no further. Left out: yes, or as the earlier run."
    )
    limit_s: float | None = Field(
        None,
        ge=1,
        le=LARGEST_LIMIT_S,
        allow_inf_nan=False,
        description="It ends after that many seconds either way. Left out: never, or as the earlier run; null: never.",
    )
    reason: Reason


class LaunchAsked(_Asked):
    """A run of a recipe."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    recipe: str = Field(
        min_length=1,
        max_length=128,
        pattern=NAME,
        description="One that comes with AstraFlow (`astraflow recipes`), or of the page's own.",
    )


class CloneAsked(_Asked):
    """A run with the settings of an earlier one."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CLONE]})

    of: str = Field(min_length=1, max_length=128, pattern=NAME, description="A run that was launched from here.")


class LaunchAnswer(Filled):
    """A run that was launched from here."""

    name: str
    recipe: str
    state: StateName
    actor: str = Field(description="Who launched it.")
    launched_at: float = Field(description="Unix seconds.")
    last_word: str = Field(description="How it ended; empty while it goes on.")
    folder: str
    fleet: bool
    ends_by_itself: bool
    limit_s: float | None
    can_resume: bool
    logs: list[str] = Field(description="Its processes that have a log.")


class LaunchList(Filled):
    """A page of launched runs, newest first."""

    items: list[LaunchAnswer]
    total: int
    page: int
    pages: int


class LogAnswer(Filled):
    """A stretch of a log."""

    program: str
    text: str
    end: int = Field(description="Where it ends: `after` of the next request.")


@router.get("/launches", response_model=LaunchList, responses=refusals())
@needs(Need.READ)
async def launches(
    parts: PartsOf,
    state: Annotated[StateName | None, Query()] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000, description="From 1; beyond the last it is empty.")] = 1,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Runs that were launched from here, newest first."""
    found = [one for one in await parts.launcher.launches() if state is None or one.state.value == state]
    return {
        "items": [_answer(one) for one in found[(page - 1) * limit : page * limit]],
        "total": len(found),
        "page": page,
        "pages": max(1, -(-len(found) // limit)),
    }


@router.post("/launches", status_code=201, response_model=LaunchAnswer, responses=refusals(404, *SENT))
@needs(Need.OPERATE)
async def launch(parts: PartsOf, viewer: ViewerOf, body: LaunchAsked | CloneAsked, key: Key) -> dict[str, Any]:
    """Start a run as a process of its own, which goes on when the page's process ends.

    404 for a recipe or run that there is not, 409 for settings that the recipe does not take.
    """
    try:
        source = (
            await acts.source_of(parts, body.recipe, "")
            if isinstance(body, LaunchAsked)
            else await acts.source_of(parts, "", body.of)
        )
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem
    try:
        form, overrides = await acts.checked(parts, source.place, body.set)
        usual = await acts.usual_options(parts, form, body.of if isinstance(body, CloneAsked) else "")
        options = reachable(_options(body, usual), form, parts.settings)
        name = await acts.launch(parts, viewer, source, overrides, options, reason=body.reason, key=key)
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem
    return _answer(await parts.launcher.launch(name))


@router.get("/launches/{name}", response_model=LaunchAnswer, responses=refusals(404))
@needs(Need.READ)
async def one(parts: PartsOf, name: RunName) -> dict[str, Any]:
    """One of them."""
    return _answer(await parts.launcher.launch(name))


@router.post("/launches/{name}/stop", status_code=202, response_model=LaunchAnswer, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.LAUNCH)
async def stop(parts: PartsOf, viewer: ViewerOf, name: RunName, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Ask it to end: its nodes hand back what they have, and it can be resumed. 409 when it has ended."""
    await acts.stop(parts, viewer, name, reason=body.reason, key=key)
    return _answer(await parts.launcher.launch(name))


@router.post("/launches/{name}/resume", status_code=202, response_model=LaunchAnswer, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.LAUNCH)
async def resume(parts: PartsOf, viewer: ViewerOf, name: RunName, body: ReasonOnly, key: Key) -> dict[str, Any]:
    """Let it go on where it was. 409 while it goes on, or when it never began."""
    try:
        await acts.resume(parts, viewer, name, reason=body.reason, key=key)
    except UnknownRun:
        raise
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem
    return _answer(await parts.launcher.launch(name))


@router.get("/launches/{name}/log", response_model=LogAnswer, responses=refusals(404))
@needs(Need.READ)
async def log(
    parts: PartsOf,
    name: RunName,
    program: Annotated[str, Query(max_length=128, description="One of the run's `logs`.")] = LOG,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="`end` of the request before.")] = None,
) -> dict[str, Any]:
    """The end of one process's log (64 KiB at most), or what came after a place in it."""
    launched = await parts.launcher.launch(name)
    try:
        text, end = tail(launched.folder, program, after=after)
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem
    return {"program": program, "text": text, "end": end}


def _options(body: _Asked, usual: LaunchOptions) -> LaunchOptions:
    """What is said, and what is usual for the rest."""
    return LaunchOptions(
        has_fleet=usual.has_fleet if body.fleet is None else body.fleet,
        ends_by_itself=usual.ends_by_itself if body.ends_by_itself is None else body.ends_by_itself,
        limit_s=body.limit_s if "limit_s" in body.model_fields_set else usual.limit_s,
    )


def _answer(launch: Launch) -> dict[str, Any]:
    return {
        "name": launch.name,
        "recipe": launch.recipe,
        "state": launch.state.value,
        "actor": launch.actor,
        "launched_at": launch.launched_at,
        "last_word": launch.last_word,
        "folder": str(launch.folder.path),
        "fleet": launch.options.has_fleet,
        "ends_by_itself": launch.options.ends_by_itself,
        "limit_s": launch.options.limit_s,
        "can_resume": launch.can_resume,
        "logs": launch.folder.logs(),
    }
