"""Launches, stops and resumes runs for a viewer: once per idempotency key, with an entry in the audit log.

Pages and the API both use these functions.
"""

import json
from collections.abc import Awaitable, Callable

from astraflow.contract.errors import Conflict
from astraflow.runtime.redaction import SECRET_PATTERN
from web.launcher.launcher import LaunchOrder
from web.launcher.options import LaunchOptions, with_join_address
from web.launches.launch_plans import check_agent_limit, check_plan
from web.launches.views import LaunchChoice
from web.requests.commands import Commands, LaunchReply
from web.requests.run_lookup import Launches
from web.security.audit_log import AuditedCommand, Facts


async def launch(
    launches: Launches, commands: Commands, choice: LaunchChoice, *, reason: str, key: str = "", plan: str = ""
) -> str:
    """Starts a run and returns its name. plan: of the preview that the user saw; empty for none.

    Raises: NotPermitted or InvalidInput for a choice that is not ready, Conflict for another plan or a key of another
    change.
    """
    choice.check()
    check_plan(commands, choice, plan=plan)
    source, overrides, options = choice.source, choice.overrides, choice.options
    after = {"set": " ".join(overrides)} if overrides else {}
    command = AuditedCommand(action="run.launch", target=source.location, after=after, reason=reason)
    request = ["launch", source.location, *options.arguments(), *overrides]

    async def start() -> str:
        await check_agent_limit(launches, commands)
        order = LaunchOrder(
            recipe=source.recipe or source.launch.recipe,
            source=source.name,
            location=source.location,
            overrides=overrides,
            earlier_overrides=source.launch.overrides,
            options=options,
            actor=commands.viewer.name,
            reason=SECRET_PATTERN.sub("[secret]", reason),
            needs_admin=choice.needs_admin,
            key=commands.own_key(key) if key else "",
            request=json.dumps(request) if key else "",
        )
        return (await launches.launcher.start(order)).name

    return await _run_once_per_key(launches, commands, command, key, request, start)


async def stop(launches: Launches, commands: Commands, name: str, *, reason: str, key: str = "") -> str:
    """Stops a run gracefully and returns its name. Raises: UnknownRun, Conflict."""

    async def ask() -> str:
        return (await launches.launcher.stop(name)).name

    return await _run_once_per_key(
        launches, commands, AuditedCommand(action="run.stop", target=name, reason=reason), key, ["stop", name], ask
    )


async def resume(launches: Launches, commands: Commands, name: str, *, reason: str, key: str = "") -> str:
    """Resumes a run and returns its name. Raises: UnknownRun, Conflict, InvalidInput."""

    async def ask() -> str:
        await check_agent_limit(launches, commands)
        run = await launches.launcher.launch(name)
        options = LaunchOptions.of_launch(run.launch)
        if run.can_resume and options.has_fleet:  # the join address of this service may have changed
            form = await launches.catalogue.form(str(run.folder.recipe_file))
            options = with_join_address(options, form, launches.settings)
        return (await launches.launcher.resume(name, options)).name

    return await _run_once_per_key(
        launches, commands, AuditedCommand(action="run.resume", target=name, reason=reason), key, ["resume", name], ask
    )


async def _run_once_per_key(
    launches: Launches,
    commands: Commands,
    command: AuditedCommand,
    key: str,
    request: list[str],
    act: Callable[[], Awaitable[str]],
) -> str:
    """Runs the command and logs it in the audit log; a key that was used before returns the earlier result.

    The reply is stored as soon as it is known: a repeated request acts no second time.
    """
    commands.check_kill_switch()
    own, text = commands.own_key(key) if key else "", json.dumps(request)
    async with commands.cache.launch_lock:
        reply = await _earlier_reply(launches, commands, own) if own else None
        if reply is not None and reply.request != text:
            raise Conflict(
                f"cannot run the command: the idempotency key {key!r} belongs to another change; use a new key",
                code="request.key_reused",
            )
        if reply is None:

            def facts(run: str) -> Facts:
                return {**command.after, "run": run}

            run = await commands.audit_log.record(commands.viewer.author, command, act, result_facts=facts)
            reply = LaunchReply(request=text, run=run)
            if own:
                commands.cache.launches.put(own, reply)
        return reply.run


async def _earlier_reply(launches: Launches, commands: Commands, own: str) -> LaunchReply | None:
    """Returns the reply to an earlier request with this key. Launches are also found after a restart."""
    cached = commands.cache.launches.get(own)
    if cached is not None:
        return cached
    stored = await launches.launcher.launch_with_key(own)
    return None if stored is None else LaunchReply(request=stored[0], run=stored[1])
