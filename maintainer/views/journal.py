"""The journal and the run's events: texts of others become templates, figures of sentences of ours are told."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from astraflow.contract.fleet import Decision
from astraflow.contract.reports import Event
from maintainer.texts import abstract
from maintainer.tools import outputs
from maintainer.tools.inputs import EventsInput
from maintainer.views.figures import rounded
from maintainer.views.moment import Moment
from maintainer.views.pools import pool_view

_SENTENCE = re.compile(
    r"from (?P<before>\d+) to (?P<after>\d+) nodes(?:, (?P<launched>\d+) launched)?"
    r"(?:, (?P<drained>\d+) (?:drained|killed))?(?:, held for (?P<held>\d+) minutes)?(?P<approved>, approved by .+)?"
)
"""What the fleet service writes of a plan that was applied: its figures are told."""

_KINDS: Mapping[str, frozenset[str]] = {
    "changes": frozenset({"apply", "spec"}),
    "refusals": frozenset({"refuse", "reject"}),
    "launch_failures": frozenset({"launch_failed"}),
    "orphans": frozenset({"orphan"}),
    "holds": frozenset({"hold"}),
    "escalations": frozenset({"escalate", "note"}),
}


def events_view(moment: Moment, asked: EventsInput) -> outputs.EventsOutput:
    """`fleet_events`."""
    sight = moment.sight
    since = sight.at - asked.since_s
    wanted = _KINDS.get(asked.kind, frozenset())
    journal = [
        _entry(moment, one)
        for one in sight.decisions
        if one.at >= since and (asked.kind == "all" or one.kind in wanted)
    ]
    of_run = sight.report.events if sight.report is not None and asked.kind in ("all", "nodes") else ()
    seen = [_event(moment, one) for one in of_run if one.at >= since]
    found = sorted((*journal, *seen), key=lambda event: event.age_s)
    return outputs.EventsOutput(events=found[: asked.limit], matching=len(found))


def explanation(moment: Moment, decision: Decision) -> outputs.ExplainOutput:
    """`fleet_explain`."""
    told = _SENTENCE.fullmatch(decision.message) if decision.kind == "apply" else None
    names = ("before", "after", "launched", "drained", "held")
    figures = {name: int(told[name] or 0) if told else None for name in names}
    pool = next((one for one in moment.sight.fleet.pools if one.spec.id == decision.pool), None)
    return outputs.ExplainOutput(
        decision=decision.ordinal,
        age_s=rounded(moment.sight.at - decision.at),
        kind=_known(decision.kind),
        pool=moment.names.token("pool", decision.pool) or None,
        by=decision.actor.role.value,
        nodes_before=figures["before"],
        nodes_after=figures["after"],
        launched=figures["launched"],
        drained=figures["drained"],
        held_minutes=figures["held"],
        was_approved=bool(told and told["approved"]),
        message=abstract(decision.message, moment.names),
        reason=abstract(decision.reason, moment.names),
        pool_now=pool_view(moment, pool) if pool is not None else None,
    )


def _entry(moment: Moment, decision: Decision) -> outputs.EventView:
    return outputs.EventView(
        decision=decision.ordinal,
        age_s=rounded(moment.sight.at - decision.at),
        kind=_known(decision.kind),
        pool=moment.names.token("pool", decision.pool) or None,
        by=decision.actor.role.value,
        text=abstract(f"{decision.message}: {decision.reason}", moment.names),
    )


def _event(moment: Moment, event: Event) -> outputs.EventView:
    return outputs.EventView(
        decision=None,
        age_s=rounded(moment.sight.at - event.at),
        kind="node",
        pool=None,
        by=None,
        text=abstract(f"{event.kind}: {event.message}", moment.names),
    )


def _known(kind: str) -> Any:
    return kind if kind in get_args(outputs.DecisionKind) else "other"
