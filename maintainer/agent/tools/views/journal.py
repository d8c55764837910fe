"""Views of the journal and the run's events: kinds, causes and numbers; texts of other authors are redacted."""

from collections.abc import Mapping
from typing import Any

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.record_kinds import RecordKind, Topic
from astraflow.contract.reports.report import Event
from maintainer.agent.tools import outputs
from maintainer.agent.tools.inputs import EventsInput
from maintainer.agent.tools.views.pools import pool_view
from maintainer.agent.tools.views.redacted_texts import values_fields
from maintainer.agent.tools.views.view_context import ViewContext, rounded

_KINDS: Mapping[str, frozenset[RecordKind]] = {
    "changes": frozenset({RecordKind.APPLY, RecordKind.SPEC}),
    "refusals": frozenset({RecordKind.REFUSE, RecordKind.REJECT}),
    "launch_failures": frozenset({RecordKind.LAUNCH_FAILED}),
    "orphans": frozenset({RecordKind.ORPHAN}),
    "holds": frozenset({RecordKind.HOLD}),
    "escalations": frozenset({RecordKind.ESCALATE, RecordKind.NOTE}),
}


def events_view(view_context: ViewContext, arguments: EventsInput) -> outputs.EventsOutput:
    """`fleet_events`."""
    snapshot = view_context.snapshot
    since = snapshot.at - arguments.since_s
    wanted = _KINDS.get(arguments.kind, frozenset())
    journal = [
        _entry(view_context, decision)
        for decision in snapshot.decisions
        if decision.at >= since and (arguments.kind == "all" or decision.kind in wanted)
    ]
    run_events = snapshot.report.events if snapshot.report is not None and arguments.kind in ("all", "nodes") else ()
    node_events = [_event(view_context, event) for event in run_events if event.at >= since]
    events = sorted((*journal, *node_events), key=lambda event: event.age_s)
    return outputs.EventsOutput(events=events[: arguments.limit], matching=len(events))


def explanation(view_context: ViewContext, decision: Decision) -> outputs.ExplainOutput:
    """`fleet_explain`."""
    change = decision.change
    pool = next(
        (candidate for candidate in view_context.snapshot.fleet.pools if candidate.spec.id == decision.subject), None
    )
    return outputs.ExplainOutput(
        decision=decision.ordinal,
        by=decision.role,
        nodes_before=change.nodes_before if change is not None else None,
        nodes_after=change.nodes_after if change is not None else None,
        launched=change.launched if change is not None else None,
        retired=change.retired if change is not None else None,
        hold_s=rounded(change.hold_s) if change is not None else None,
        was_approved=change is not None and change.is_approved,
        rules=[finding.code for finding in decision.findings],
        pool_now=pool_view(view_context, pool) if pool is not None else None,
        **_record_fields(view_context, decision, pool=decision.subject),
    )


def _entry(view_context: ViewContext, decision: Decision) -> outputs.EventView:
    fields = _record_fields(view_context, decision, pool=decision.subject)
    return outputs.EventView(decision=decision.ordinal, by=decision.role, **fields)


def _event(view_context: ViewContext, event: Event) -> outputs.EventView:
    is_of_pool = Topic.FLEET in event.kind.topics and event.kind.subject == "pool"
    fields = _record_fields(view_context, event, pool=event.subject if is_of_pool else "")
    return outputs.EventView(decision=None, by=None, **fields)


def _record_fields(view_context: ViewContext, record: Decision | Event, *, pool: str) -> dict[str, Any]:
    return {
        "age_s": rounded(view_context.snapshot.at - record.at),
        "kind": record.kind,
        "pool": view_context.names.token("pool", pool) or None,
        **values_fields(record, view_context.names),
    }
