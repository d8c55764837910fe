"""`/runs/new` and `/launches`: launches runs from recipes, and stops, resumes and shows launched runs."""

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from sqlmodel import Session

from astraflow.client.local_runs import LAUNCH_LOG, log_tail
from astraflow.contract.errors import AstraFlowError, InvalidInput
from web.components.formats import exact
from web.database import run_records
from web.database.db import Database
from web.database.preferences import preferred_names, set_preferred_names
from web.launcher.options import LaunchOptions
from web.launches import commands as launch_commands
from web.launches import launch_choice
from web.launches.launch_choice import LaunchRequest, Purpose, launch_source
from web.launches.recipe_cards import recipe_list
from web.launches.schemas import MAX_TEXT
from web.launches.views import SETTING_PREFIX, LaunchChoice, LaunchView, launch_view, text_digest
from web.requests.commands import Commands
from web.requests.dependencies import (
    RUN_COOKIE,
    AdminsDep,
    CommandsDep,
    DatabaseDep,
    FollowedRunsDep,
    LaunchesDep,
    PagesDep,
    ViewerDep,
)
from web.requests.responses import DEFAULT_REASON, redirect_with_flash, redirects
from web.requests.run_lookup import Launches
from web.security.addresses import local_path
from web.security.flash import Flash
from web.security.roles import Permission, ResourceKind, needs

router = APIRouter()

FAVOURITES = "favourite_recipes"
"""Name of the preference."""
MAX_FAVOURITES = 100
"""Favourite recipes of one person. Count."""

FIRST_LIST_S = 0.3
"""Longest wait for the list of recipes; a page without it loads it. Seconds."""


@router.get("/runs/new")
@needs(Permission.OPERATE)
async def new(
    request: Request,
    pages: PagesDep,
    launches: LaunchesDep,
    viewer: ViewerDep,
    database: DatabaseDep,
    recipe: str = "",
    of: str = "",
    fork: bool = False,
    q: Annotated[str, Query(max_length=200)] = "",
    is_whole: bool = False,
) -> Response:
    """Lists the recipes that match the words of `q`; with a recipe (or `of` an earlier run) shows its form. A link
    cannot preset settings.

    fork: chooses the newest kept checkpoint of the earlier run as the beginning. is_whole: waits for the list, however
    long it takes to read it.
    """
    if recipe or of:
        choice = await launch_choice.default_choice(launches, viewer, await launch_source(launches, recipe, of))
        if fork and choice.kept_steps:
            choice = replace(choice, options=replace(choice.options, fork_step=choice.kept_steps[0]))
        return _form_page(request, pages, "new", choice)
    try:
        catalogue = launches.catalogue
        cards = await catalogue.cards() if is_whole else await catalogue.cards_within(FIRST_LIST_S)
    except AstraFlowError as error:
        return pages.page(request, "launches/recipes.html", page="runs", problem=str(error), status=503)
    starred = await database.read(lambda session: preferred_names(session, viewer.user_id, FAVOURITES))
    listed = None if cards is None else recipe_list(cards, search_text=q, favourites=starred)
    return pages.page(request, "launches/recipes.html", page="runs", list=listed, search_text=q, problem="")


@router.post("/runs/new/favourite")
@needs(Permission.OPERATE)
async def star(
    launches: LaunchesDep,
    viewer: ViewerDep,
    database: DatabaseDep,
    recipe: Annotated[str, Form(max_length=128)],
    is_favourite: Annotated[bool, Form()],
    q: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Makes a recipe a favourite of the viewer, or none."""
    if is_favourite:
        await launches.catalogue.card(recipe)
    await database.write(lambda session: _set_favourite(session, viewer.user_id, recipe, is_favourite=is_favourite))
    return RedirectResponse(f"/runs/new?{urlencode({'q': q})}" if q else "/runs/new", 303)


@router.post("/runs/new/preview")
@needs(Permission.OPERATE)
async def preview(request: Request, pages: PagesDep, launches: LaunchesDep, commands: CommandsDep) -> Response:
    """Returns the preview of the launch for the current form values and the text with them, as a fragment; also the
    fields, if these are others than the page shows."""
    choice = await _chosen(request, launches, commands, Purpose.PREVIEW)
    submitted = await request.form()
    has_other_fields = submitted.get("edited") == "text" or submitted.get("fields") != choice.fields_digest
    return _form_page(
        request, pages, "_check", choice, has_other_fields=has_other_fields, status=403 if choice.refusals else 200
    )


@router.post("/runs/new/preflight")
@needs(Permission.OPERATE)
async def preflight(request: Request, pages: PagesDep, launches: LaunchesDep, commands: CommandsDep) -> Response:
    """Runs the providers' preflight checks for the current form values. No instance is started."""
    choice = await _chosen(request, launches, commands, Purpose.PREFLIGHT)
    return pages.page(request, "launches/_preflight.html", choice=choice, status=403 if choice.refusals else 200)


@router.post("/runs/new")
@needs(Permission.OPERATE)
async def launch(request: Request, pages: PagesDep, launches: LaunchesDep, commands: CommandsDep) -> Response:
    """Launches the run and redirects to its page; with `check`, or with invalid settings, shows the form."""
    form_values = _form_values((await request.form()).multi_items())
    is_check = "check" in form_values
    choice = await _chosen(request, launches, commands, Purpose.PREFLIGHT if is_check else Purpose.LAUNCH)
    if is_check or not choice.is_ready:
        return _form_page(request, pages, "new", choice, status=choice.status)
    reason, key = form_values.get("reason", ""), form_values.get("key", "")
    try:
        name = await launch_commands.launch(launches, commands, choice, reason=reason, key=key)
    except AstraFlowError as problem:
        return redirect_with_flash(Flash.failure("The run was not launched", problem), page="/runs/new")
    return redirect_with_flash(Flash(text=f"The run {name} was launched", tone="good"), page=f"/launches/{name}")


@router.get("/launches/{name}")
@needs(Permission.READ)
async def show(
    request: Request,
    pages: PagesDep,
    launches: LaunchesDep,
    database: DatabaseDep,
    admins: AdminsDep,
    name: str,
    program: str = "",
) -> Response:
    """Shows the state and the logs of a launched run."""
    view = await _launch_view(launches, database, name, program)
    return pages.page(request, "launches/launch.html", page="runs", view=view, admins=admins)


@router.get("/launches/{name}/state")
@needs(Permission.READ)
async def show_state(
    request: Request, pages: PagesDep, launches: LaunchesDep, database: DatabaseDep, admins: AdminsDep, name: str
) -> Response:
    """Returns the state of a launched run, as a fragment."""
    view = await _launch_view(launches, database, name)
    return pages.page(request, "launches/_state.html", view=view, admins=admins)


@router.get("/launches/{name}/log")
@needs(Permission.READ)
async def log(launches: LaunchesDep, name: str, program: str = LAUNCH_LOG, after: int | None = None) -> Response:
    """Returns the end of one process's log, or the text after the byte offset `after`."""
    launched = await launches.launcher.launch(name)
    text, end = log_tail(launched.folder, program, after=after)
    return JSONResponse({"program": program, "text": text, "end": end})


@router.get("/launches/{name}/stop")
@needs(Permission.OPERATE, on=ResourceKind.LAUNCH)
async def ask_stop(request: Request, pages: PagesDep, launches: LaunchesDep, name: str) -> Response:
    """Shows the confirmation page for stopping a run."""
    launched = await launches.launcher.launch(name)
    return pages.confirm(
        request,
        page="runs",
        title=f"Stop {launched.name}?",
        sentence="Its nodes return unfinished tasks, and all its processes end. Accepted results are kept: the run can "
        "be resumed.",
        button="Stop run",
        back=f"/launches/{launched.name}",
    )


@router.post("/launches/{name}/stop")
@needs(Permission.OPERATE, on=ResourceKind.LAUNCH)
@redirects("/launches/{name}", failed="The run was not stopped")
async def stop(launches: LaunchesDep, commands: CommandsDep, name: str, reason: str = Form("")) -> str:
    """Requests that the run stops."""
    return f"the run {await launch_commands.stop(launches, commands, name, reason=reason)} is stopping"


@router.post("/launches/{name}/resume")
@needs(Permission.OPERATE, on=ResourceKind.LAUNCH)
@redirects("/launches/{name}", failed="The run was not resumed")
async def resume(launches: LaunchesDep, commands: CommandsDep, name: str) -> str:
    """Resumes the run from where it stopped."""
    return f"The run {await launch_commands.resume(launches, commands, name, reason=DEFAULT_REASON)} is resuming"


@router.post("/runs/watch")
@needs(Permission.READ)
async def watch(
    launches: LaunchesDep,
    followed: FollowedRunsDep,
    name: Annotated[str, Form(max_length=200)],
    next_path: Annotated[str, Form(alias="next")] = "/",
) -> Response:
    """Selects, for this browser, which of the followed runs the pages show."""
    if followed.by_name(name).name != name:
        return redirect_with_flash(
            Flash(text=f"The run {name} is not followed: it has ended or has not started", tone="bad"), page="/runs"
        )
    response = RedirectResponse(local_path(next_path), 303)
    response.set_cookie(RUN_COOKIE, name, httponly=True, samesite="lax", secure=launches.settings.is_https, path="/")
    return response


def _set_favourite(session: Session, user_id: int, recipe: str, *, is_favourite: bool) -> None:
    names = {*preferred_names(session, user_id, FAVOURITES)} - {recipe} | ({recipe} if is_favourite else set())
    if len(names) > MAX_FAVOURITES:
        raise InvalidInput(
            f"cannot star the recipe {recipe!r}: you have {MAX_FAVOURITES} favourites; remove one",
            code="launch.too_many_favourites",
        )
    set_preferred_names(session, user_id, FAVOURITES, sorted(names))


def _form_values(items: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Returns the form's fields. Repeated fields are joined into a comma-separated list, without empty values."""
    texts: dict[str, list[str]] = {}
    for key, value in items:
        texts.setdefault(key, []).append(str(value))
    return {key: values[0] if len(values) == 1 else ", ".join(filter(None, values)) for key, values in texts.items()}


async def _chosen(request: Request, launches: Launches, commands: Commands, purpose: Purpose) -> LaunchChoice:
    """Returns the launch form of a recipe or an earlier run with the submitted values."""
    form_values = _form_values((await request.form()).multi_items())
    launch_request = LaunchRequest(
        source=await launch_source(launches, form_values.get("recipe", ""), form_values.get("of", "")),
        values={
            key.removeprefix(SETTING_PREFIX): value
            for key, value in form_values.items()
            if key.startswith(SETTING_PREFIX)
        },
        options_from=lambda usual: _options(form_values, usual),
        text=form_values["text"].replace("\r\n", "\n") if "text" in form_values else None,
        is_text_edited=_is_text_edited(form_values),
        key=form_values.get("key", "")[:100],
        reason=form_values.get("reason", ""),
    )
    return await launch_choice.choose_launch(launches, commands, launch_request, purpose)


def _is_text_edited(form_values: dict[str, str]) -> bool:
    """Returns whether the text was edited last. Without scripts, an edit of the text is all that is known."""
    edited, text = form_values.get("edited", ""), form_values.get("text", "").replace("\r\n", "\n")
    digest = form_values.get("text_digest", "")
    return edited == "text" or (not edited and bool(digest) and text_digest(text) != digest)


def _form_page(request: Request, pages: PagesDep, name: str, choice: LaunchChoice, **facts: Any) -> Response:
    """Renders the form or a part of it."""
    return pages.page(request, f"launches/{name}.html", page="runs", choice=choice, max_text=MAX_TEXT, **facts)


def _options(form_values: dict[str, str], usual: LaunchOptions) -> LaunchOptions:
    """Returns the submitted options, or the defaults for the first display. Browsers omit unchecked boxes."""
    if not any(key.startswith(SETTING_PREFIX) for key in form_values):
        usual_limit = "" if usual.limit_s is None else exact(usual.limit_s)
        form_values = {"limit_s": usual_limit, **_checked_boxes(usual), **form_values}
    limit = form_values.get("limit_s", "").strip()
    try:
        limit_s = float(limit) if limit else None
    except ValueError:
        raise InvalidInput(
            f"cannot read the time limit: {limit[:40]!r} is not a number; enter seconds or leave it empty",
            code="launch.bad_time_limit",
        ) from None
    if limit_s is not None and not 1 <= limit_s <= 10**7:
        raise InvalidInput(
            f"cannot use the time limit {limit[:40]!r}: it is out of range; enter 1 to 10000000 seconds",
            code="launch.bad_time_limit",
        )
    return LaunchOptions(
        has_fleet=form_values.get("fleet") == "on",
        ends_by_itself=form_values.get("ends_by_itself") == "on",
        limit_s=limit_s,
        fork_step=_fork_step(form_values.get("step", "").strip()),
        has_fresh_optimizer=form_values.get("fresh_optimizer") == "on",
    )


def _fork_step(text: str) -> int | None:
    if text and not re.fullmatch(r"[0-9]{1,15}", text):
        raise InvalidInput(
            f"cannot read the step: {text[:40]!r} is no whole number; choose one of the list", code="launch.bad_step"
        )
    return int(text) if text else None


def _checked_boxes(options: LaunchOptions) -> dict[str, str]:
    boxes = {"fleet": options.has_fleet, "ends_by_itself": options.ends_by_itself}
    return {name: "on" for name, is_on in boxes.items() if is_on}


async def _launch_view(launches: Launches, database: Database, name: str, program: str = "") -> LaunchView:
    """Returns the view of a run, whose logs are read in a thread."""
    run = await launches.launcher.launch(name)
    run_id = await database.read(lambda session: run_records.id_of(session, name))
    return await asyncio.to_thread(launch_view, run, program, run_id=run_id, now=time.time())
