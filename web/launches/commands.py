"""Launches, stops and resumes runs for a viewer: once per idempotency key, with an entry in the audit log.

Pages and the API both use these functions.
"""

import json
from collections.abc import Awaitable, Callable

from astraflow.contract.errors import Conflict
from web.accounts.viewer import Viewer
from web.launcher.options import with_join_address
from web.launches.views import LaunchChoice
from web.requests.cache import LaunchReply
from web.requests.context import RequestContext
from web.requests.fleet_commands import own_key
from web.security.audit_log import AuditedCommand, Facts


async def launch(context: RequestContext, viewer: Viewer, choice: LaunchChoice, *, reason: str, key: str = "") -> str:
    """Starts a run and returns its name.

    Raises: NotPermitted or InvalidInput for a choice that is not ready, Conflict for a key of another change.
    """
    choice.check()
    source, overrides, options = choice.source, choice.overrides, choice.options
    after = {"set": " ".join(overrides)} if overrides else {}
    command = AuditedCommand(action="run.launch", target=source.location, after=after, reason=reason)
    request = ["launch", source.location, *options.arguments(), *overrides]

    async def start() -> str:
        launched = await context.launcher.start(
            source.name,
            source.location,
            overrides,
            options,
            actor=viewer.name,
            needs_admin=choice.needs_admin,
            key=own_key(viewer, key) if key else "",
            request=json.dumps(request) if key else "",
        )
        return launched.name

    return await _run_once_per_key(context, viewer, command, key, request, start)


async def stop(context: RequestContext, viewer: Viewer, name: str, *, reason: str, key: str = "") -> str:
    """Stops a run gracefully and returns its name. Raises: UnknownRun, Conflict."""

    async def ask() -> str:
        return (await context.launcher.stop(name)).name

    return await _run_once_per_key(
        context, viewer, AuditedCommand(action="run.stop", target=name, reason=reason), key, ["stop", name], ask
    )


async def resume(context: RequestContext, viewer: Viewer, name: str, *, reason: str, key: str = "") -> str:
    """Resumes a run and returns its name. Raises: UnknownRun, Conflict, InvalidInput."""

    async def ask() -> str:
        launched = await context.launcher.launch(name)
        options = launched.options
        if launched.can_resume and options.has_fleet:  # the join address of this service may have changed
            form = await context.catalogue.form(str(launched.folder.recipe_file))
            options = with_join_address(options, form, context.settings)
        return (await context.launcher.resume(name, options)).name

    return await _run_once_per_key(
        context, viewer, AuditedCommand(action="run.resume", target=name, reason=reason), key, ["resume", name], ask
    )


async def _run_once_per_key(
    context: RequestContext,
    viewer: Viewer,
    command: AuditedCommand,
    key: str,
    request: list[str],
    act: Callable[[], Awaitable[str]],
) -> str:
    """Runs the command and logs it in the audit log; a key that was used before returns the earlier result.

    The reply is stored as soon as it is known: a repeated request acts no second time.
    """
    own, text = own_key(viewer, key) if key else "", json.dumps(request)
    async with context.cache.launch_lock:
        reply = await _earlier_reply(context, own) if own else None
        if reply is not None and reply.request != text:
            raise Conflict(
                f"cannot run the command: the idempotency key {key!r} belongs to another change; use a new key",
                code="request.key_reused",
            )
        if reply is None:

            def facts(run: str) -> Facts:
                return {**command.after, "run": run}

            run = await context.audit_log.record(viewer.author, command, act, result_facts=facts)
            reply = LaunchReply(request=text, run=run)
            if own:
                context.cache.launches.put(own, reply)
        return reply.run


async def _earlier_reply(context: RequestContext, own: str) -> LaunchReply | None:
    """Returns the reply to an earlier request with this key. Launches are also found after a restart."""
    cached = context.cache.launches.get(own)
    if cached is not None:
        return cached
    stored = await context.launcher.launch_with_key(own)
    return None if stored is None else LaunchReply(request=stored[0], run=stored[1])
