"""`/api/v1/launches`: runs that are started from here, and looking after them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput, NotPermitted
from web.accounts.viewer import Viewer
from web.door.roles import Need, On, needs
from web.launching import acts, choosing
from web.launching.choosing import Purpose, Wish
from web.launching.launcher import LOG, Launch, UnknownRun, tail
from web.launching.options import LaunchOptions
from web.launching.sources import source_of
from web.parts import Parts, PartsOf, ViewerOf
from web.present.launches import LAUNCHES, LaunchChoice
from web.routes.api.fleet_bodies import ReasonOnly
from web.routes.api.launch_terms import (
    Asked,
    CloneAsked,
    ClonePreviewed,
    LaunchAnswer,
    LaunchAsked,
    LaunchList,
    LaunchPreviewed,
    LogAnswer,
    PreviewAnswer,
    StateName,
)
from web.routes.api.terms import PREFIX, SENT, Key, Limit, refusals

router = APIRouter(prefix=PREFIX, tags=["launches"])

RunName = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="Name of the run.", examples=["smoke-20260101"]),
]


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

    403 for settings that the role may not override, 404 for a recipe or run that there is not, 409 for settings that
    the recipe does not take.
    """
    try:
        choice = await _chosen(parts, viewer, body, Purpose.LAUNCH, key=key)
        name = await acts.launch(parts, viewer, choice, reason=body.reason, key=key)
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem
    return _answer(await parts.launcher.launch(name))


@router.post("/launch-preview", response_model=PreviewAnswer, responses=refusals(404, *SENT))
@needs(Need.OPERATE)
async def preview(parts: PartsOf, viewer: ViewerOf, body: LaunchPreviewed | ClonePreviewed) -> dict[str, Any]:
    """What would come of a launch: the recipe as it would be run, what is wrong with it, checks, machines and cost.

    Nothing is started. Its providers are asked whether they would start its machines, and at which price, which takes
    as long as they do. A setting that makes no sense is an answer too: look at `is_ready`. It is entered in the audit.
    403 for settings that the role may not override: then no provider is asked. 404 for a recipe or run that there is
    not, 409 for one that cannot be read.
    """
    try:
        choice = await _chosen(parts, viewer, body, Purpose.REHEARSE)
        if choice.refusals:
            raise NotPermitted(choice.refused)
        return _preview(choice)
    except InvalidInput as problem:
        raise HTTPException(409, str(problem)) from problem


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


async def _chosen(parts: Parts, viewer: Viewer, body: Asked, purpose: Purpose, *, key: str = "") -> LaunchChoice:
    """What is asked for. Raises: HTTPException for a recipe or run that there is not, InvalidInput for one torn."""
    recipe, of = getattr(body, "recipe", ""), getattr(body, "of", "")
    try:
        source = await source_of(parts, recipe, of)
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem
    wish = Wish(
        source=source,
        values={name: choosing.written(value) for name, value in body.set.items()},
        options_from=lambda usual: _options(body, usual),
        key=key,
        reason=getattr(body, "reason", ""),
    )
    return await choosing.chosen(parts, viewer, wish, purpose)


def _options(body: Asked, usual: LaunchOptions) -> LaunchOptions:
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


def _preview(choice: LaunchChoice) -> dict[str, Any]:
    form = choice.form
    pools = choice.rehearsed.pools if choice.rehearsed is not None else form.pools
    checks = [check.model_dump() for check in choice.provider_checks]
    return {
        "recipe": choice.source.recipe,
        "of": choice.source.of,
        "is_ready": choice.is_ready,
        "problem": choice.problem,
        "problems": [problem.model_dump() for problem in form.problems],
        "checks": [check.model_dump() for check in form.checks],
        "machines": choice.machines,
        "cost": choice.cost,
        "pools": [pool.model_dump() for pool in pools] if choice.has_pools else [],
        "usd_per_hour": 0.0 if choice.has_pools else form.usd_per_hour,
        "usd_per_hour_max": form.usd_per_hour_max,
        "usd_per_day_max": form.usd_per_day_max,
        "provider_checks": [{**check, "pool": check["pool"] or None} for check in checks],
        "provider_problem": choice.rehearsal_problem,
        "toml": form.toml,
        "command": choice.command,
        "request": {"method": "POST", "address": LAUNCHES, "body": choice.body},
        "fleet": choice.options.has_fleet,
        "ends_by_itself": choice.options.ends_by_itself,
        "limit_s": choice.options.limit_s,
    }
