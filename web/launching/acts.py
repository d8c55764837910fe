"""Launching, stopping and resuming on behalf of a viewer: once for each key, entered in the audit either way.

Pages and the API both come through here.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from astraflow.contract.errors import AstraFlowError, Conflict
from web.accounts.viewer import Viewer
from web.acts.fleet import own_key
from web.audit.entries import Deed
from web.launching.options import reachable
from web.parts import Parts
from web.present.launches import LaunchChoice


async def launch(parts: Parts, viewer: Viewer, choice: LaunchChoice, *, reason: str, key: str = "") -> str:
    """Start a run; returns its name.

    Raises: NotPermitted or InvalidInput for a choice that is not ready, Conflict for a key of something else.
    """
    choice.check()
    source, overrides, options = choice.source, choice.overrides, choice.options
    after = {"set": " ".join(overrides)} if overrides else {}
    deed = Deed(action="run.launch", target=source.place, after=after, reason=reason)

    async def start() -> str:
        launched = await parts.launcher.start(
            source.name, source.place, overrides, options, actor=viewer.name, needs_admin=choice.needs_admin
        )
        return launched.name

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
