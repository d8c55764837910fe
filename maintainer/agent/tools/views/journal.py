"""Views of the journal and the run's events. Texts are redacted; the numbers of an applied plan are passed on."""

from collections.abc import Mapping

from astraflow.contract.fleet.decisions import Decision, DecisionKind
from astraflow.contract.records import render
from astraflow.contract.reports.report import Event
from maintainer.agent.tools import outputs
from maintainer.agent.tools.inputs import EventsInput
from maintainer.agent.tools.views.pools import pool_view
from maintainer.agent.tools.views.redacted_texts import redact
from maintainer.agent.tools.views.view_context import ViewContext, rounded

_KINDS: Mapping[str, frozenset[DecisionKind]] = {
    "changes": frozenset({DecisionKind.APPLY, DecisionKind.SPEC}),
    "refusals": frozenset({DecisionKind.REFUSE, DecisionKind.REJECT}),
    "launch_failures": frozenset({DecisionKind.LAUNCH_FAILED}),
    "orphans": frozenset({DecisionKind.ORPHAN}),
    "overrides": frozenset({DecisionKind.OVERRIDE}),
    "escalations": frozenset({DecisionKind.ESCALATE, DecisionKind.NOTE}),
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
        (candidate for candidate in view_context.snapshot.fleet.pools if candidate.spec.id == decision.pool), None
    )
    return outputs.ExplainOutput(
        decision=decision.ordinal,
        age_s=rounded(view_context.snapshot.at - decision.at),
        kind=decision.kind,
        pool=view_context.names.token("pool", decision.pool) or None,
        by=decision.actor.role,
        nodes_before=change.nodes_before if change is not None else None,
        nodes_after=change.nodes_after if change is not None else None,
        launched=change.launched if change is not None else None,
        retired=change.retired if change is not None else None,
        override_s=rounded(change.override_s) if change is not None else None,
        was_approved=change is not None and change.is_approved,
        message=redact(decision.message, view_context.names),
        reason=redact(decision.reason, view_context.names),
        pool_now=pool_view(view_context, pool) if pool is not None else None,
    )


def _entry(view_context: ViewContext, decision: Decision) -> outputs.EventView:
    return outputs.EventView(
        decision=decision.ordinal,
        age_s=rounded(view_context.snapshot.at - decision.at),
        kind=decision.kind,
        pool=view_context.names.token("pool", decision.pool) or None,
        by=decision.actor.role,
        text=redact(f"{decision.message}: {decision.reason}", view_context.names),
    )


def _event(view_context: ViewContext, event: Event) -> outputs.EventView:
    return outputs.EventView(
        decision=None,
        age_s=rounded(view_context.snapshot.at - event.at),
        kind="node",
        pool=None,
        by=None,
        text=redact(f"{event.kind.value}: {render(event)}", view_context.names),
    )
