"""Commands for flows on behalf of a viewer, for pages and the API: pause, resume, change plugins."""

import json
from collections.abc import Mapping
from dataclasses import replace

from astraflow.contract.ids import FlowId
from astraflow.contract.plugins import PluginChange
from web.requests.commands import Commands
from web.requests.responses import reason_of
from web.security.audit_log import AuditedCommand
from web.state.run_state import RunState


async def pause_flow(commands: Commands, flow: FlowId, *, is_paused: bool, key: str, reason: str) -> str:
    """Pauses or resumes issuing; returns a sentence. Raises: InvalidInput for an unknown flow."""
    commands.check_kill_switch()
    command = AuditedCommand(action="flow.pause" if is_paused else "flow.resume", target=flow, reason=reason)

    async def pause() -> str:
        return await commands.run.control.pause_flow(
            flow, is_paused=is_paused, actor=commands.viewer.name, reason=reason_of(reason)
        )

    return await commands.audited_once(command, pause, key=key, request=(command.action, flow, reason))


async def change_plugins(commands: Commands, change: PluginChange, *, key: str) -> str:
    """Changes plugins from the next version on, with the viewer as actor; returns a sentence.

    Raises: InvalidInput for an unknown kind or option; UnknownPolicy.
    """
    commands.check_kill_switch()
    reason = change.reason
    change = replace(change, actor=commands.viewer.name, reason=reason_of(reason))
    command = AuditedCommand(
        action="plugins.change",
        target=str(change.flow or change.policy),
        reason=reason,
        before=_current_plugins(commands.run.state, change),
        after={
            slot.value: json.dumps([dict(spec) for spec in specs]) for slot, specs in change.specs_by_slot().items()
        },
    )

    async def apply() -> str:
        return await commands.run.control.change_plugins(change)

    return await commands.audited_once(command, apply, key=key, request=change)


def _current_plugins(state: RunState, change: PluginChange) -> Mapping[str, str]:
    report = state.report
    flow = next((candidate for candidate in report.flows if candidate.id == change.flow), None) if report else None
    stream = (
        next((candidate for candidate in report.streams if candidate.policy == change.policy), None) if report else None
    )
    specs = {
        "selector": [dict(flow.selector)] if flow else [],
        "filters": [dict(spec) for spec in flow.filters] if flow else [],
        "sampler": [dict(stream.sampler)] if stream else [],
    }
    return {slot.value: json.dumps(specs[slot.value]) for slot in change.specs_by_slot()}
