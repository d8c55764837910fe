"""Launching, stopping and resuming on behalf of a viewer: once for each key, entered in the audit either way.

Pages and the API both come through here.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput
from web.accounts.viewer import Viewer
from web.acts.fleet import own_key
from web.audit.entries import Deed
from web.launching.options import LaunchOptions, reachable
from web.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a run is made of."""

    name: str
    """Of the recipe, or of the earlier run."""
    place: str
    """As `astraflow run` takes it: a name, or a file."""
    recipe: str = ""
    """The recipe's name; empty for an earlier run's."""
    of: str = ""
    """The earlier run; empty for a recipe."""


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
        return Source(name=of, place=str(launched.folder.recipe_file), of=of)
    card = await parts.catalogue.card(recipe)
    return Source(name=card.name, place=card.place, recipe=card.name)


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
