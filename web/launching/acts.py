"""Launching, stopping and resuming on behalf of a viewer: once for each key, entered in the audit either way.

Pages and the API both come through here.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput
from web.accounts.viewer import Viewer
from web.audit import Deed
from web.fleet_acts import own_key
from web.launching.catalogue import RecipeForm, overrides_from
from web.launching.options import LaunchOptions, reachable
from web.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a run is made of."""

    name: str
    """Of the recipe, or of the earlier run."""
    place: str
    """As `astraflow run` takes it: a name, or a file."""


async def source_of(parts: Parts, recipe: str, of: str) -> Source:
    """What to launch: a recipe that there is, or the snapshot of a run that was launched from here.

    Raises: InvalidInput, UnknownRun.
    """
    if bool(recipe) == bool(of):
        raise InvalidInput("a launch is of a recipe, or `of` an earlier run: name one of them")
    if of:
        launched = await parts.launcher.launch(of)
        if not launched.folder.recipe_file.exists():
            raise InvalidInput(f"the run {of} has no recipe yet: it never began")
        return Source(name=of, place=str(launched.folder.recipe_file))
    card = await parts.catalogue.card(recipe)
    return Source(name=card.name, place=card.place)


async def usual_options(parts: Parts, form: RecipeForm, of: str) -> LaunchOptions:
    """How a run is started when nobody says otherwise: as the earlier one was, else as its recipe asks.

    Raises: UnknownRun.
    """
    return (await parts.launcher.launch(of)).options if of else LaunchOptions(has_fleet=form.has_fleet)


async def checked(parts: Parts, place: str, settings: Mapping[str, object]) -> tuple[RecipeForm, list[str]]:
    """A recipe with these settings, and what they change of it, as `--set` takes it.

    Raises: InvalidInput that names what is wrong.
    """
    form, overrides = await settled(parts, place, {key: _written(value) for key, value in settings.items()})
    if form.problems:
        raise InvalidInput("; ".join(f"{one.key}: {one.message}" if one.key else one.message for one in form.problems))
    return form, overrides


async def settled(parts: Parts, place: str, values: Mapping[str, str]) -> tuple[RecipeForm, list[str]]:
    """A recipe with settings as a form has them, whatever is wrong with it, and what they change.

    What another kind of plug-in can be told is known once it is chosen. Raises: InvalidInput for an unknown setting.
    """
    plain = await parts.catalogue.form(place)
    known = {field.key for field in plain.fields}
    overrides = overrides_from({key: text for key, text in values.items() if key in known}, plain)
    form = await parts.catalogue.form(place, overrides) if overrides else plain
    if others := overrides_from({key: text for key, text in values.items() if key not in known}, form):
        overrides += others
        form = await parts.catalogue.form(place, overrides)
    return form, overrides


async def launch(
    parts: Parts,
    viewer: Viewer,
    source: Source,
    overrides: Sequence[str],
    options: LaunchOptions,
    *,
    reason: str,
    key: str = "",
) -> str:
    """Start a run; returns its name. Raises: InvalidInput, Conflict for a key that was used for something else."""
    after = {"set": " ".join(overrides)} if overrides else {}
    deed = Deed(action="run.launch", target=source.place, after=after, reason=reason)

    async def start() -> str:
        return (await parts.launcher.start(source.name, source.place, overrides, options, actor=viewer.name)).name

    return await _once(parts, viewer, deed, key, ["launch", source.place, *options.arguments(), *overrides], start)


async def stop(parts: Parts, viewer: Viewer, name: str, *, reason: str, key: str = "") -> str:
    """Ask a run to end; returns its name. Raises: UnknownRun, Conflict."""

    async def ask() -> str:
        return (await parts.launcher.stop(name)).name

    return await _once(parts, viewer, Deed(action="run.stop", target=name, reason=reason), key, ["stop", name], ask)


async def resume(parts: Parts, viewer: Viewer, name: str, *, reason: str, key: str = "") -> str:
    """Let a run go on where it was; returns its name. Raises: UnknownRun, Conflict, InvalidInput."""

    async def ask() -> str:
        launched = await parts.launcher.launch(name)
        options = launched.options
        if launched.can_resume and options.has_fleet:  # what the page was told of joining may have changed since
            form = await parts.catalogue.form(str(launched.folder.recipe_file))
            options = reachable(options, form, parts.settings)
        return (await parts.launcher.resume(name, options)).name

    return await _once(parts, viewer, Deed(action="run.resume", target=name, reason=reason), key, ["resume", name], ask)


def _written(value: object) -> str:
    """A setting as the form has it."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


async def _once(
    parts: Parts, viewer: Viewer, deed: Deed, key: str, asked: list[str], act: Callable[[], Awaitable[str]]
) -> str:
    """Do it and enter it in the audit; what was done under this key already is answered as it was then."""
    own = own_key(viewer, key) if key else ""
    async with parts.shelf.launching:
        known = parts.shelf.launches.get(own) if own else None
        if known is not None and known[0] != asked:
            raise Conflict(f"the idempotency key {key!r} was used for another change: take a new one for each change")
        if known is not None:
            return known[1]
        try:
            name = await act()
        except AstraFlowError as problem:
            failed = replace(deed, result="failed", after={**deed.after, "problem": str(problem)})
            await parts.trail.note(viewer.author, failed)
            raise
        await parts.trail.note(viewer.author, replace(deed, after={**deed.after, "run": name}))
        if own:
            parts.shelf.launches.put(own, (asked, name))
        return name
