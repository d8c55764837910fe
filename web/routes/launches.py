"""`/runs/new` and `/launches`: starting runs from their recipes, and looking after those that were."""

from collections.abc import Iterable

from fastapi import APIRouter, Form, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from astraflow.contract.errors import AstraFlowError, InvalidInput
from web.accounts.viewer import Viewer
from web.acts.steering import NO_REASON, told
from web.door.flash import Flash
from web.door.roles import Need, On, needs
from web.launching import acts, choosing
from web.launching.choosing import Purpose, Wish
from web.launching.launcher import tail
from web.launching.options import LaunchOptions
from web.launching.sources import source_of
from web.parts import RUN_COOKIE, Parts, PartsOf, ViewerOf
from web.present.launches import SET, LaunchChoice, launch_view
from web.present.shell import shell

router = APIRouter()


@router.get("/runs/new")
@needs(Need.OPERATE)
async def new(request: Request, parts: PartsOf, viewer: ViewerOf, recipe: str = "", of: str = "") -> Response:
    """The recipes; with one chosen (or `of` an earlier run), its form. A link fills in no setting."""
    frame = shell(parts.state, parts.settings)
    if not recipe and not of:
        cards = await parts.catalogue.cards()
        return parts.pages.page(request, "launches/recipes.html", page="runs", shell=frame, cards=cards)
    choice = await choosing.plain(parts, viewer, await source_of(parts, recipe, of))
    return parts.pages.page(request, "launches/new.html", page="runs", shell=frame, choice=choice)


@router.post("/runs/new/preview")
@needs(Need.OPERATE)
async def preview(request: Request, parts: PartsOf, viewer: ViewerOf) -> Response:
    """What would come of the form as it is filled in, alone."""
    choice = await _chosen(request, parts, viewer, Purpose.PREVIEW)
    return parts.pages.page(request, "launches/_preview.html", choice=choice, status=403 if choice.refusals else 200)


@router.post("/runs/new/rehearsal")
@needs(Need.OPERATE)
async def rehearsal(request: Request, parts: PartsOf, viewer: ViewerOf) -> Response:
    """What the providers of its fleet say to the form as it is filled in. Nothing is started."""
    choice = await _chosen(request, parts, viewer, Purpose.REHEARSE)
    return parts.pages.page(request, "launches/_rehearsal.html", choice=choice, status=403 if choice.refusals else 200)


@router.post("/runs/new")
@needs(Need.OPERATE)
async def launch(request: Request, parts: PartsOf, viewer: ViewerOf) -> Response:
    """Start the run, and go to its page; with `check`, or when something is wrong, show the form."""
    given = _given((await request.form()).multi_items())
    is_check = "check" in given
    choice = await _chosen(request, parts, viewer, Purpose.REHEARSE if is_check else Purpose.LAUNCH)
    if is_check or not choice.is_ready:
        frame = shell(parts.state, parts.settings)
        return parts.pages.page(
            request, "launches/new.html", page="runs", shell=frame, choice=choice, status=choice.status
        )
    try:
        name = await acts.launch(parts, viewer, choice, reason=given.get("reason", ""), key=given.get("key", ""))
    except AstraFlowError as problem:
        return told(Flash(text=f"The run was not launched: {problem}", tone="bad"), back="/runs/new")
    return told(Flash(text=f"The run {name} was launched", tone="good"), back=f"/launches/{name}")


@router.get("/launches/{name}")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, name: str, program: str = "") -> Response:
    """A launched run: how it stands, and its logs."""
    view = launch_view(await parts.launcher.launch(name), program)
    return parts.pages.page(
        request,
        "launches/launch.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        view=view,
        admins=await parts.accounts.users.admins(),
    )


@router.get("/launches/{name}/state")
@needs(Need.READ)
async def show_state(request: Request, parts: PartsOf, name: str) -> Response:
    """How it stands, alone."""
    return parts.pages.page(
        request,
        "launches/_state.html",
        view=launch_view(await parts.launcher.launch(name), ""),
        admins=await parts.accounts.users.admins(),
    )


@router.get("/launches/{name}/log")
@needs(Need.READ)
async def log(parts: PartsOf, name: str, program: str = "launch", after: int | None = None) -> Response:
    """The end of one process's log, or what came after a place in it."""
    launched = await parts.launcher.launch(name)
    text, end = tail(launched.folder, program, after=after)
    return JSONResponse({"program": program, "text": text, "end": end})


@router.get("/launches/{name}/stop")
@needs(Need.OPERATE, on=On.LAUNCH)
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
@needs(Need.OPERATE, on=On.LAUNCH)
async def stop(parts: PartsOf, viewer: ViewerOf, name: str, reason: str = Form("")) -> Response:
    """Ask it to end."""
    try:
        await acts.stop(parts, viewer, name, reason=reason)
    except AstraFlowError as problem:
        return told(Flash(text=f"The run was not stopped: {problem}", tone="bad"), back=f"/launches/{name}")
    return told(Flash(text=f"{name} was asked to end", tone="good"), back=f"/launches/{name}")


@router.post("/launches/{name}/resume")
@needs(Need.OPERATE, on=On.LAUNCH)
async def resume(parts: PartsOf, viewer: ViewerOf, name: str) -> Response:
    """Let it go on where it was."""
    try:
        await acts.resume(parts, viewer, name, reason=NO_REASON)
    except AstraFlowError as problem:
        return told(Flash(text=f"The run was not resumed: {problem}", tone="bad"), back=f"/launches/{name}")
    return told(Flash(text=f"{name} goes on where it was", tone="good"), back=f"/launches/{name}")


@router.post("/runs/watch")
@needs(Need.READ)
async def watch(parts: PartsOf, name: str = Form(max_length=200), next: str = Form("/")) -> Response:  # noqa: A002 (the field's name)
    """Show another of the runs that are followed, in this browser."""
    if parts.followed.named(name).name != name:
        return told(
            Flash(text=f"The run {name} is not followed: it has ended, or has not begun", tone="bad"), back="/runs"
        )
    response = RedirectResponse(next if next.startswith("/") and not next.startswith("//") else "/", 303)
    response.set_cookie(RUN_COOKIE, name, httponly=True, samesite="lax", secure=parts.settings.is_https, path="/")
    return response


def _given(items: Iterable[tuple[str, object]]) -> dict[str, str]:
    """The fields of a form. Those of one name are a list, in their order; what is empty is left out of it."""
    texts: dict[str, list[str]] = {}
    for key, value in items:
        texts.setdefault(key, []).append(str(value))
    return {key: found[0] if len(found) == 1 else ", ".join(filter(None, found)) for key, found in texts.items()}


async def _chosen(request: Request, parts: Parts, viewer: Viewer, purpose: Purpose) -> LaunchChoice:
    """The form of a recipe, or of an earlier run's, with what was filled in."""
    given = _given((await request.form()).multi_items())
    wish = Wish(
        source=await source_of(parts, given.get("recipe", ""), given.get("of", "")),
        values={key.removeprefix(SET): value for key, value in given.items() if key.startswith(SET)},
        options_from=lambda usual: _options(given, usual),
        key=given.get("key", "")[:100],
        reason=given.get("reason", ""),
    )
    return await choosing.chosen(parts, viewer, wish, purpose)


def _options(given: dict[str, str], usual: LaunchOptions) -> LaunchOptions:
    """What was filled in; before anything was, what is usual. A box that is not ticked is not sent."""
    if not any(key.startswith(SET) for key in given):
        usual_limit = "" if usual.limit_s is None else f"{usual.limit_s:g}"
        given = {"limit_s": usual_limit, **_ticked(usual), **given}
    limit = given.get("limit_s", "").strip()
    try:
        limit_s = float(limit) if limit else None
    except ValueError:
        raise InvalidInput(f"the time limit is a number of seconds, or nothing (found {limit[:40]!r})") from None
    if limit_s is not None and not 1 <= limit_s <= 10**7:
        raise InvalidInput("the time limit is between a second and four months")
    return LaunchOptions(
        has_fleet=given.get("fleet") == "on", ends_by_itself=given.get("ends_by_itself") == "on", limit_s=limit_s
    )


def _ticked(options: LaunchOptions) -> dict[str, str]:
    boxes = {"fleet": options.has_fleet, "ends_by_itself": options.ends_by_itself}
    return {name: "on" for name, is_on in boxes.items() if is_on}
