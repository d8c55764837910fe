"""Launching, stopping and resuming on behalf of a viewer: once for each key, entered in the audit either way.

Pages and the API both come through here.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, Conflict, InvalidInput
from web.accounts.viewer import Viewer
from web.audit import Deed
from web.fleet_acts import own_key
from web.launching.catalogue import overrides_from
from web.launching.launcher import LaunchOptions
from web.parts import Parts


async def place_of(parts: Parts, recipe: str, of: str) -> str:
    """What to launch: a recipe that comes with AstraFlow, or the snapshot of a run that was launched from here.

    Raises: InvalidInput, UnknownRun.
    """
    if bool(recipe) == bool(of):
        raise InvalidInput("a launch is of a recipe, or `of` an earlier run: name one of them")
    if of:
        launched = await parts.launcher.launch(of)
        if not launched.folder.recipe_file.exists():
            raise InvalidInput(f"the run {of} has no recipe yet: it never began")
        return str(Path(launched.folder.recipe_file))
    return (await parts.catalogue.card(recipe)).name


async def checked_overrides(parts: Parts, place: str, settings: Mapping[str, object]) -> list[str]:
    """What settings change of a recipe, as `--set` takes it. Raises: InvalidInput that names what is wrong."""
    plain = await parts.catalogue.form(place)
    written = {key: _written(value) for key, value in settings.items()}
    overrides = overrides_from(written, plain)
    form = await parts.catalogue.form(place, overrides) if overrides else plain
    if form.problems:
        raise InvalidInput("; ".join(f"{one.key}: {one.message}" if one.key else one.message for one in form.problems))
    return overrides


async def launch(
    parts: Parts,
    viewer: Viewer,
    place: str,
    overrides: Sequence[str],
    options: LaunchOptions,
    *,
    reason: str,
    key: str = "",
) -> str:
    """Start a run; returns its name. Raises: InvalidInput, Conflict for a key that was used for something else."""
    deed = Deed(
        action="run.launch", target=place, after={"set": " ".join(overrides)} if overrides else {}, reason=reason
    )

    async def start() -> str:
        return (await parts.launcher.start(place, overrides, options, actor=viewer.name)).name

    return await _once(parts, viewer, deed, key, ["launch", place, *options.arguments(), *overrides], start)


async def stop(parts: Parts, viewer: Viewer, name: str, *, reason: str, key: str = "") -> str:
    """Ask a run to end; returns its name. Raises: UnknownRun, Conflict."""

    async def ask() -> str:
        return (await parts.launcher.stop(name)).name

    return await _once(parts, viewer, Deed(action="run.stop", target=name, reason=reason), key, ["stop", name], ask)


async def resume(parts: Parts, viewer: Viewer, name: str, *, reason: str, key: str = "") -> str:
    """Let a run go on where it was; returns its name. Raises: UnknownRun, Conflict, InvalidInput."""

    async def ask() -> str:
        return (await parts.launcher.resume(name)).name

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
