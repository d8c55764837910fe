"""Steering flows on behalf of a viewer: pausing them, and changing plug-ins. Pages and the API come through here."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

from astraflow.contract.ids import FlowId
from astraflow.contract.plugins import PluginChange
from web.accounts.viewer import Viewer
from web.acts.fleet import acted_once
from web.acts.steering import reason_of
from web.audit.entries import Deed
from web.parts import Parts


async def pause_flow(parts: Parts, viewer: Viewer, flow: FlowId, *, is_paused: bool, key: str, reason: str) -> str:
    """Stop or go on issuing; returns a sentence. Raises: InvalidInput for a flow that is not there."""
    deed = Deed(action="flow.pause" if is_paused else "flow.resume", target=flow, reason=reason)

    async def asked() -> str:
        return await parts.control.pause_flow(flow, is_paused=is_paused, actor=viewer.name, reason=reason_of(reason))

    return await acted_once(parts, viewer, deed, asked, key=key, asked_for=f"{deed.action} {flow} {reason}")


async def change_plugins(parts: Parts, viewer: Viewer, change: PluginChange, *, key: str) -> str:
    """Have other plug-ins decide from the next version on; returns a sentence. The viewer is who acts.

    Raises: InvalidInput for a kind or option that is not known; UnknownPolicy.
    """
    reason = change.reason
    change = replace(change, actor=viewer.name, reason=reason_of(reason))
    asked_for = json.dumps(asdict(change), default=str, sort_keys=True)
    deed = Deed(
        action="plugins.change",
        target=str(change.flow or change.policy),
        reason=reason,
        before=_in_force(parts, change),
        after={seam.value: json.dumps([dict(spec) for spec in specs]) for seam, specs in change.wanted().items()},
    )

    async def asked() -> str:
        return await parts.control.change_plugins(change)

    return await acted_once(parts, viewer, deed, asked, key=key, asked_for=asked_for)


def _in_force(parts: Parts, change: PluginChange) -> Mapping[str, str]:
    report = parts.state.report
    flow = next((one for one in report.flows if one.id == change.flow), None) if report else None
    stream = next((one for one in report.streams if one.policy == change.policy), None) if report else None
    now = {
        "selector": [dict(flow.selector)] if flow else [],
        "filters": [dict(spec) for spec in flow.filters] if flow else [],
        "sampler": [dict(stream.sampler)] if stream else [],
    }
    return {seam.value: json.dumps(now[seam.value]) for seam in change.wanted()}
