"""`/runs/new` and `/launches`: starting runs from their recipes, and looking after those that were."""

from pathlib import Path
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError, InvalidInput
from web.audit import Deed
from web.flash import Flash
from web.launching.catalogue import RecipeForm, overrides_from
from web.launching.launcher import Launch, LaunchOptions, tail
from web.parts import RUN_COOKIE, Parts, PartsOf, ViewerOf
from web.present.launches import SET, LaunchChoice, launch_view
from web.present.shell import shell
from web.roles import Need, needs
from web.steering import steered, told

router = APIRouter()


@router.get("/runs/new")
@needs(Need.OPERATE)
async def new(request: Request, parts: PartsOf, recipe: str = "", of: str = "") -> Response:
    """The recipes; with one chosen (or `of` an earlier run), its form, and what would come of it."""
    frame = shell(parts.state, parts.settings)
    if not recipe and not of:
        cards = await parts.catalogue.cards()
        return parts.pages.page(request, "launches/recipes.html", page="runs", shell=frame, cards=cards)
    choice = await _choice(parts, request, recipe, of)
    return parts.pages.page(request, "launches/new.html", page="runs", shell=frame, choice=choice)


@router.get("/runs/new/preview")
@needs(Need.OPERATE)
async def preview(request: Request, parts: PartsOf, recipe: str = "", of: str = "") -> Response:
    """What would come of the form as it is filled in, alone."""
    choice = await _choice(parts, request, recipe, of)
    return parts.pages.page(request, "launches/_preview.html", choice=choice)


@router.post("/runs/new")
@needs(Need.OPERATE)
async def launch(request: Request, parts: PartsOf, viewer: ViewerOf) -> Response:
    """Start the run, and go to its page."""
    form = await request.form()
    given = {key: str(value) for key, value in form.items()}
    choice = await _chosen(parts, given, given.get("recipe", ""), given.get("of", ""))
    if "check" in given or not choice.is_ready:
        frame = shell(parts.state, parts.settings)
        status = 200 if choice.is_ready else 422
        return parts.pages.page(request, "launches/new.html", page="runs", shell=frame, choice=choice, status=status)
    deed = Deed(
        action="run.launch",
        target=choice.place,
        after={"set": " ".join(choice.overrides)},
        reason=given.get("reason", ""),
    )
    started: list[Launch] = []

    async def start() -> str:
        started.append(await parts.launcher.start(choice.place, choice.overrides, choice.options, actor=viewer.name))
        return f"The run {started[0].name} was launched"

    answer = await steered(parts, viewer, deed, start(), if_failed="The run was not launched", back="/runs/new")
    if started:
        answer.headers["location"] = f"/launches/{started[0].name}"
    return answer


@router.get("/launches/{name}")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, name: str, program: str = "") -> Response:
    """A launched run: how it stands, and its logs."""
    view = launch_view(await parts.launcher.launch(name), program)
    return parts.pages.page(
        request, "launches/launch.html", page="runs", shell=shell(parts.state, parts.settings), view=view
    )


@router.get("/launches/{name}/state")
@needs(Need.READ)
async def show_state(request: Request, parts: PartsOf, name: str) -> Response:
    """How it stands, alone."""
    return parts.pages.page(request, "launches/_state.html", view=launch_view(await parts.launcher.launch(name), ""))


@router.get("/launches/{name}/log")
@needs(Need.READ)
async def log(parts: PartsOf, name: str, program: str = "launch", after: int | None = None) -> Response:
    """The end of one process's log, or what came after a place in it."""
    launched = await parts.launcher.launch(name)
    text, end = tail(launched.folder, program, after=after)
    return JSONResponse({"program": program, "text": text, "end": end})


@router.get("/launches/{name}/stop")
@needs(Need.OPERATE)
async def ask_stop(request: Request, parts: PartsOf, name: str) -> Response:
    """Say what stopping does, and ask."""
    launched = await parts.launcher.launch(name)
    return parts.pages.page(
        request,
        "confirm.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        title=f"Stop {launched.name}?",
        sentence=(
            "Its nodes hand back what they have begun, and all its processes end. Nothing that was accepted is lost: "
            "it can be resumed."
        ),
        action=request.url.path,
        button="Stop run",
        back=f"/launches/{launched.name}",
        tone="bad",
    )


@router.post("/launches/{name}/stop")
@needs(Need.OPERATE)
async def stop(parts: PartsOf, viewer: ViewerOf, name: str, reason: str = Form("")) -> Response:
    """Ask it to end."""

    async def ask() -> str:
        await parts.launcher.stop(name)
        return f"{name} was asked to end"

    deed = Deed(action="run.stop", target=name, reason=reason)
    return await steered(parts, viewer, deed, ask(), if_failed="The run was not stopped", back=f"/launches/{name}")


@router.post("/launches/{name}/resume")
@needs(Need.OPERATE)
async def resume(parts: PartsOf, viewer: ViewerOf, name: str) -> Response:
    """Let it go on where it was."""

    async def ask() -> str:
        await parts.launcher.resume(name)
        return f"{name} goes on where it was"

    deed = Deed(action="run.resume", target=name)
    return await steered(parts, viewer, deed, ask(), if_failed="The run was not resumed", back=f"/launches/{name}")


@router.post("/runs/watch")
@needs(Need.READ)
async def watch(parts: PartsOf, name: str = Form(max_length=200), next: str = Form("/")) -> Response:  # noqa: A002 (the field's name)
    """Show another of the runs that are followed, in this browser."""
    if parts.followings.named(name).name != name:
        return told(
            Flash(text=f"The run {name} is not followed: it has ended, or has not begun", tone="bad"), back="/runs"
        )
    response = RedirectResponse(next if next.startswith("/") and not next.startswith("//") else "/", 303)
    response.set_cookie(RUN_COOKIE, name, httponly=True, samesite="lax", secure=parts.settings.is_https, path="/")
    return response


async def _choice(parts: Parts, request: Request, recipe: str, of: str) -> LaunchChoice:
    return await _chosen(parts, dict(request.query_params), recipe, of)


async def _chosen(parts: Parts, given: dict[str, str], recipe: str, of: str) -> LaunchChoice:
    """The form of a recipe, or of an earlier run's, with what was filled in."""
    place = await _place(parts, recipe, of)
    plain = await parts.catalogue.form(place)
    values = {key.removeprefix(SET): value for key, value in given.items() if key.startswith(SET)}
    problem, overrides, form = "", [], plain
    try:
        overrides = overrides_from(values, plain)
        form = await parts.catalogue.form(place, overrides) if overrides else plain
        options = _options(given)
    except AstraFlowError as trouble:
        problem, options = str(trouble), LaunchOptions()
    return LaunchChoice(
        place=place,
        recipe=recipe,
        of=of,
        form=_filled(form, plain, values),
        overrides=tuple(overrides),
        options=options,
        problem=problem,
        query=urlencode({"recipe": recipe} if recipe else {"of": of}),
    )


def _filled(form: RecipeForm, plain: RecipeForm, values: dict[str, str]) -> RecipeForm:
    """The form with the texts that were filled in, also those that make no sense."""
    fields = tuple(
        field.model_copy(update={"value": values[field.key].strip()}) if field.key in values else field
        for field in (form.fields if not form.problems else plain.fields)
    )
    return form.model_copy(update={"fields": fields})


async def _place(parts: Parts, recipe: str, of: str) -> str:
    """What to launch: a recipe that comes with AstraFlow, or the snapshot of a run that was launched from here."""
    if of:
        launched = await parts.launcher.launch(of)
        if not launched.folder.recipe_file.exists():
            raise InvalidInput(f"the run {of} has no recipe yet: it never began")
        return str(Path(launched.folder.recipe_file))
    return (await parts.catalogue.card(recipe)).name


def _options(given: dict[str, str]) -> LaunchOptions:
    limit = given.get("limit_s", "").strip()
    try:
        limit_s = float(limit) if limit else None
    except ValueError:
        raise InvalidInput(f"the time limit is a number of seconds, or nothing (found {limit[:40]!r})") from None
    if limit_s is not None and not 1 <= limit_s <= 10**7:
        raise InvalidInput("the time limit is between a second and four months")
    has_form = any(key.startswith(SET) for key in given)
    return LaunchOptions(
        has_fleet=given.get("fleet") == "on",
        ends_by_itself=given.get("ends_by_itself") == "on" if has_form else True,
        limit_s=limit_s,
    )
