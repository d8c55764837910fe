"""Views of nodes: selection, order and fields."""

import math
from collections.abc import Mapping, Sequence

from astraflow.contract.fleet.instances import Instance, InstanceState
from astraflow.contract.node_metrics import NODE_GAUGES
from astraflow.contract.reports.report import NodeState
from maintainer.agent.tools import outputs
from maintainer.agent.tools.inputs import NodesInput
from maintainer.agent.tools.views.redacted_texts import redact
from maintainer.agent.tools.views.view_context import ViewContext, rounded, rounded_or_none

MOST_ERRORS = 3

_STATES: Mapping[str, tuple[InstanceState, ...]] = {
    "ready": (InstanceState.READY,),
    "starting": (InstanceState.INTENDED, InstanceState.PENDING, InstanceState.RUNNING),
    "leaving": (InstanceState.DRAINING, InstanceState.RETIRING),
}


def nodes_view(view_context: ViewContext, arguments: NodesInput) -> outputs.NodesOutput:
    """`fleet_nodes`. Raises: InvalidInput for an unknown token."""
    pool = view_context.names.name("pool", arguments.pool) if arguments.pool is not None else None
    in_pool = [instance for instance in view_context.snapshot.instances if pool in (None, instance.pool)]
    matching: Sequence[Instance] = [
        instance for instance in in_pool if _matches(view_context, instance, arguments.filter)
    ]
    ranked = sorted(matching, key=lambda instance: _rank(view_context, instance, arguments.sort))
    return outputs.NodesOutput(
        nodes=[node_view(view_context, instance) for instance in ranked[: arguments.limit]], matching=len(matching)
    )


def node_view(view_context: ViewContext, instance: Instance) -> outputs.NodeView:
    """View of one node."""
    at, names, node = view_context.snapshot.at, view_context.names, view_context.node(instance)
    speed = node.episodes_per_s if node is not None else 0.0
    report = view_context.snapshot.report
    return outputs.NodeView(
        node=names.token("node", instance.id),
        pool=names.token("pool", instance.pool),
        state=instance.state,
        report_state=node.state if node is not None else None,
        type=names.token("type", instance.type),
        region=names.token("region", instance.region),
        is_spot=instance.is_spot,
        usd_per_hour=rounded(instance.usd_per_hour),
        age_s=rounded(at - instance.intended_at),
        ready_age_s=rounded_or_none(at - instance.ready_at if instance.ready_at is not None else None),
        episodes_per_s=rounded(speed),
        relative_speed=rounded_or_none(view_context.speed_share(node) if node is not None else None),
        silence_s=rounded_or_none(node.heartbeat_age_s if node is not None else None),
        versions_behind=max(report.lag(node).values(), default=0) if report is not None and node is not None else 0,
        lease_expiries=node.lease_expiries if node is not None else 0,
        metrics={name: rounded(node.gauges[name]) for name in NODE_GAUGES if name in node.gauges}
        if node is not None
        else {},
        is_straggler=instance.id in view_context.stragglers,
        departure_cause=instance.cause,
        message=redact(instance.message, names) if instance.message else None,
        errors=[redact(text, names) for text in (node.errors if node is not None else ())[:MOST_ERRORS]],
    )


def _matches(view_context: ViewContext, instance: Instance, wanted: str) -> bool:
    if wanted == "failed":
        return instance.state is InstanceState.GONE and instance.ready_at is None
    if instance.state is InstanceState.GONE:
        return False
    if wanted == "straggler":
        return instance.id in view_context.stragglers
    if wanted == "lost":
        node = view_context.node(instance)
        return node is not None and node.state is NodeState.LOST
    return wanted == "all" or (wanted == "spot" and instance.is_spot) or instance.state in _STATES.get(wanted, ())


def _rank(view_context: ViewContext, instance: Instance, by: str) -> tuple[float, str]:
    node = view_context.node(instance)
    rank = {
        "speed": node.episodes_per_s if node is not None else 0.0,
        "age": instance.intended_at,
        "price": -instance.usd_per_hour,
        "silence": -(node.heartbeat_age_s if node is not None else math.inf),
    }[by]
    return rank, instance.id
