"""`/api/v1/launches`: launches runs from recipes, and lists, stops and resumes them."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Query
from starlette.exceptions import HTTPException

from astraflow.client.local_runs import LAUNCH_LOG, LocalRun, LocalRunState, log_tail
from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.launching import RecipeCard
from web.launcher.options import LaunchOptions
from web.launches import commands as launch_commands
from web.launches import launch_choice
from web.launches.launch_choice import LaunchRequest, Purpose, launch_source
from web.launches.launch_plans import plan_of
from web.launches.schemas import (
    ClonePreviewRequest,
    CloneRunRequest,
    LaunchList,
    LaunchPreviewRequest,
    LaunchPreviewResponse,
    LaunchResponse,
    LaunchRunRequest,
    LogResponse,
    RecipeResponse,
)
from web.launches.views import LAUNCHES_PATH, LaunchChoice
from web.requests.commands import Commands
from web.requests.dependencies import CommandsDep, LaunchesDep
from web.requests.run_lookup import Launches
from web.rest.common import (
    ApiRouter,
    Key,
    Limit,
    NumberedPage,
    PageNumber,
    ReasonRequest,
    as_tool,
    error_responses,
)
from web.security.roles import Permission, ResourceKind, needs

router = ApiRouter(tags=["launches"])

_OF_LAUNCH: dict[str, Any] = {"texts": ("reason", "actor", "folder", "final_message"), "names": ("name",)}
"""Fields of a run of this machine that people and programs write."""

RunName = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="Name of the run.", examples=["smoke-20260101"]),
]


@router.get("/launches", response_model=LaunchList)
@needs(Permission.READ)
async def launches(
    launches: LaunchesDep,
    state: Annotated[LocalRunState | None, Query()] = None,
    page: PageNumber = 1,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Lists the runs of the page's machine, newest first."""
    matching = [run for run in await launches.launcher.launches() if state is None or run.state is state]
    page_fields = NumberedPage.cut(matching, page, limit)
    return page_fields | {"items": [_to_response(run) for run in page_fields["items"]]}


@router.get("/recipes", response_model=list[RecipeResponse], openapi_extra=as_tool("recipe_list"))
@needs(Permission.OPERATE)
async def recipes(launches: LaunchesDep) -> tuple[RecipeCard, ...]:
    """Lists the recipes that can be launched, with what each needs and why this machine cannot run it."""
    return await launches.catalogue.cards()


@router.post(
    "/launches",
    status_code=201,
    response_model=LaunchResponse,
    responses=error_responses(404),
    openapi_extra=as_tool("run_start", **_OF_LAUNCH),
)
@needs(Permission.OPERATE)
async def launch(
    launches: LaunchesDep, commands: CommandsDep, body: LaunchRunRequest | CloneRunRequest, key: Key
) -> dict[str, Any]:
    """Launches a run in its own process, which outlives the web process.

    Returns 403 for settings that the role may not override, 404 for an unknown recipe or run, and 409 for settings
    that the recipe refuses, or for a `plan` that no longer describes the launch. A program of the role agent must send
    the `plan` of a preview and a time limit, may have two runs at a time, and none that may cost over 20 US dollars.
    """
    choice = await _chosen(launches, commands, body, Purpose.LAUNCH, key=key)
    name = await launch_commands.launch(launches, commands, choice, reason=body.reason, key=key, plan=body.plan)
    return _to_response(await launches.launcher.launch(name))


@router.post(
    "/launch-preview",
    response_model=LaunchPreviewResponse,
    responses=error_responses(404),
    openapi_extra=as_tool("run_plan", changes_nothing=True),
)
@needs(Permission.OPERATE)
async def preview(
    launches: LaunchesDep, commands: CommandsDep, body: LaunchPreviewRequest | ClonePreviewRequest
) -> dict[str, Any]:
    """Previews a launch: effective recipe, problems, preflight checks, instances and cost.

    Starts nothing. Runs the providers' preflight checks, which takes as long as the providers need. Invalid settings
    are reported in `problems`: check `is_ready`. The request is written to the audit log. Returns 403 for settings
    that the role may not override (then no provider is queried), 404 for an unknown recipe or run, and 409 for one
    that cannot be read.
    """
    choice = await _chosen(launches, commands, body, Purpose.PREFLIGHT)
    if choice.refusals:
        raise NotPermitted(choice.refusal_text, code="launch.refused")
    return _preview(choice)


@router.get("/launches/{name}", response_model=LaunchResponse)
@needs(Permission.READ)
async def get_launch(launches: LaunchesDep, name: RunName) -> dict[str, Any]:
    """Returns a run of the page's machine."""
    return _to_response(await launches.launcher.launch(name))


@router.post(
    "/launches/{name}/stop",
    status_code=202,
    response_model=LaunchResponse,
    openapi_extra=as_tool("run_stop", is_destructive=True, **_OF_LAUNCH),
)
@needs(Permission.OPERATE, on=ResourceKind.LAUNCH)
async def stop(
    launches: LaunchesDep, commands: CommandsDep, name: RunName, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Stops a run: its nodes return unfinished tasks, and it can be resumed. Returns 409 if it has ended."""
    await launch_commands.stop(launches, commands, name, reason=body.reason, key=key)
    return _to_response(await launches.launcher.launch(name))


@router.post(
    "/launches/{name}/resume",
    status_code=202,
    response_model=LaunchResponse,
    openapi_extra=as_tool("run_resume", **_OF_LAUNCH),
)
@needs(Permission.OPERATE, on=ResourceKind.LAUNCH)
async def resume(
    launches: LaunchesDep, commands: CommandsDep, name: RunName, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Resumes a stopped run. Returns 409 while it is running, or if it never started."""
    await launch_commands.resume(launches, commands, name, reason=body.reason, key=key)
    return _to_response(await launches.launcher.launch(name))


@router.get("/launches/{name}/log", response_model=LogResponse, openapi_extra=as_tool("run_log", texts=("text",)))
@needs(Permission.READ)
async def log(
    launches: LaunchesDep,
    name: RunName,
    program: Annotated[str, Query(max_length=128, description="Name of one of the run's `logs`.")] = LAUNCH_LOG,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="`end` of the previous response.")] = None,
) -> dict[str, Any]:
    """Returns the end of a process's log (at most 64 KiB), or the text after the offset `after`."""
    run = await launches.launcher.launch(name)
    try:
        text, end = log_tail(run.folder, program, after=after)
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem
    return {"program": program, "text": text, "end": end}


async def _chosen(
    launches: Launches,
    commands: Commands,
    body: LaunchPreviewRequest | ClonePreviewRequest,
    purpose: Purpose,
    *,
    key: str = "",
) -> LaunchChoice:
    """Returns the requested launch. Raises: HTTPException for an unknown recipe or run, InvalidInput if unreadable."""
    recipe, of = ("", body.of) if isinstance(body, ClonePreviewRequest) else (body.recipe, "")
    try:
        source = await launch_source(launches, recipe, of)
    except InvalidInput as problem:
        raise HTTPException(404, str(problem)) from problem
    launch_request = LaunchRequest(
        source=source,
        values={name: launch_choice.field_text(value) for name, value in body.set.items()},
        text=body.text,
        options_from=lambda usual: _options(body, usual),
        key=key,
        reason=body.reason,
    )
    return await launch_choice.choose_launch(launches, commands, launch_request, purpose)


def _options(body: LaunchPreviewRequest | ClonePreviewRequest, usual: LaunchOptions) -> LaunchOptions:
    """Returns the requested options, with defaults for omitted ones."""
    options = LaunchOptions(
        has_fleet=usual.has_fleet if body.fleet is None else body.fleet,
        ends_by_itself=usual.ends_by_itself if body.ends_by_itself is None else body.ends_by_itself,
        limit_s=body.limit_s if "limit_s" in body.model_fields_set else usual.limit_s,
    )
    if isinstance(body, ClonePreviewRequest):
        return replace(options, fork_step=body.step, has_fresh_optimizer=body.fresh_optimizer)
    return options


def _to_response(run: LocalRun) -> dict[str, Any]:
    return LaunchResponse.values_of(
        run,
        launched_at=run.started_at,
        actor=run.launch.actor,
        reason=run.launch.reason,
        folder=str(run.folder.path),
        fleet=run.launch.has_fleet,
        ends_by_itself=run.launch.ends_by_itself,
        limit_s=run.launch.limit_s,
        logs=run.folder.logs(),
    )


def _preview(choice: LaunchChoice) -> dict[str, Any]:
    form = choice.form
    return LaunchPreviewResponse.values_of(
        form,
        recipe=choice.source.recipe,
        of=choice.source.earlier_run,
        is_ready=choice.is_ready,
        plan=plan_of(choice) if choice.is_ready else "",
        problem=choice.problem,
        machines=choice.machines,
        cost=choice.cost,
        pools=choice.priced_pools if choice.has_pools else (),
        usd_per_hour=0.0 if choice.has_pools else form.usd_per_hour,
        provider_checks=choice.provider_checks,
        provider_problem=choice.preflight_problem,
        command=choice.command,
        request={"method": "POST", "address": LAUNCHES_PATH, "body": choice.body},
        fleet=choice.options.has_fleet,
        ends_by_itself=choice.options.ends_by_itself,
        limit_s=choice.options.limit_s,
    )
