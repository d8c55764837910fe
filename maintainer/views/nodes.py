"""Nodes: which ones are asked for, in which order, and what is told of each."""

import math
from collections.abc import Mapping, Sequence

from astraflow.contract.fleet import Instance, InstanceState
from astraflow.contract.reports import NodeState
from maintainer.texts import abstract
from maintainer.tools import outputs
from maintainer.tools.inputs import NodesInput
from maintainer.views.figures import figure, rounded
from maintainer.views.moment import Moment

MOST_ERRORS = 3

_STATES: Mapping[str, tuple[InstanceState, ...]] = {
    "ready": (InstanceState.READY,),
    "starting": (InstanceState.INTENDED, InstanceState.PENDING, InstanceState.RUNNING),
    "leaving": (InstanceState.DRAINING, InstanceState.RETIRING),
}


def nodes_view(moment: Moment, asked: NodesInput) -> outputs.NodesOutput:
    """`fleet_nodes`. Raises: InvalidInput for an unknown token."""
    pool = moment.names.name("pool", asked.pool) if asked.pool is not None else None
    in_pool = [one for one in moment.sight.instances if pool in (None, one.pool)]
    found: Sequence[Instance] = [one for one in in_pool if _matches(moment, one, asked.filter)]
    ranked = sorted(found, key=lambda one: _rank(moment, one, asked.sort))
    return outputs.NodesOutput(nodes=[node_view(moment, one) for one in ranked[: asked.limit]], matching=len(found))


def node_view(moment: Moment, instance: Instance) -> outputs.NodeView:
    """One node."""
    at, names, seen = moment.sight.at, moment.names, moment.node(instance)
    speed = seen.episodes_per_s if seen is not None else 0.0
    report = moment.sight.report
    return outputs.NodeView(
        node=names.token("node", instance.id),
        pool=names.token("pool", instance.pool),
        state=instance.state.value,
        report_state=seen.state.value if seen is not None else "absent",
        type=names.token("type", instance.type),
        region=names.token("region", instance.region),
        is_spot=instance.is_spot,
        usd_per_hour=rounded(instance.usd_per_hour),
        age_s=rounded(at - instance.intended_at),
        ready_age_s=figure(at - instance.ready_at if instance.ready_at is not None else None),
        episodes_per_s=rounded(speed),
        relative_speed=figure(moment.speed_share(seen) if seen is not None else None),
        silence_s=figure(seen.beat_age_s if seen is not None else None),
        versions_behind=max(report.lag(seen).values(), default=0) if report is not None and seen is not None else 0,
        lease_expiries=seen.lease_expiries if seen is not None else 0,
        is_straggler=instance.id in moment.stragglers,
        goes_because=instance.cause.value if instance.cause is not None else None,
        message=abstract(instance.message, names) if instance.message else None,
        errors=[abstract(text, names) for text in (seen.errors if seen is not None else ())[:MOST_ERRORS]],
    )


def _matches(moment: Moment, instance: Instance, wanted: str) -> bool:
    if wanted == "failed":
        return instance.state is InstanceState.GONE and instance.ready_at is None
    if instance.state is InstanceState.GONE:
        return False
    if wanted == "straggler":
        return instance.id in moment.stragglers
    if wanted == "lost":
        node = moment.node(instance)
        return node is not None and node.state is NodeState.LOST
    return wanted == "all" or (wanted == "spot" and instance.is_spot) or instance.state in _STATES.get(wanted, ())


def _rank(moment: Moment, instance: Instance, by: str) -> tuple[float, str]:
    node = moment.node(instance)
    rank = {
        "speed": node.episodes_per_s if node is not None else 0.0,
        "age": instance.intended_at,
        "price": -instance.usd_per_hour,
        "silence": -(node.beat_age_s if node is not None else math.inf),
    }[by]
    return rank, instance.id
