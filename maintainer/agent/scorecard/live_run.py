"""Live score of a run: its cost with the maintainer's changes, compared with the cost of the rule alone for the same
demand.

Dataflow replays the rule over recorded reports (`WhatIf`) from the maintainer's first change on, within the bounds of
the fleet service. Both sides count nodes as they existed, and the waiting that capacity below the demand explains. In
the replay every launch succeeds and no node is lost: where they fail, the rule looks better than it could have been.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import LiveScore
from astraflow.contract.fleet.plans import Actor
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.fleet.recommendations import WhatIfAnswer, WhatIfQuestion
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.values import Json

WAIT_WEIGHT = 32.0
"""k: a waiting trainer leaves four machines of eight accelerators idle; a node has one accelerator."""
MAX_AGE_S = 86400.0
"""Maximum age of a change that is scored."""
SECOND_RESOLUTION_S = 900.0
"""Period for which dataflow stores every report; older ones by the minute."""
MIN_DURATION_S = 60.0
"""Minimum duration for a meaningful score."""


class WhatIfSource(Protocol):
    """Interface of dataflow that is used; implemented by the client of the control plane."""

    async def what_if(self, question: WhatIfQuestion) -> WhatIfAnswer:
        """Replays the rule over recorded reports."""


def applied_changes(actor: Actor, decisions: Sequence[Decision], *, at: float) -> list[Decision]:
    """Applied changes of an agent in the last day, those approved by a person included."""
    return [
        decision
        for decision in decisions
        if decision.kind is RecordKind.APPLY
        and (decision.actor, decision.role) == (actor.name, actor.role)
        and at - decision.at <= MAX_AGE_S
    ]


async def live_score(
    port: WhatIfSource, changes: Sequence[Decision], pools: Sequence[Pool], *, at: float
) -> LiveScore | None:
    """Score since the first of `changes`; None without one, or too soon after it.

    at: now, Unix seconds. Raises: AstraFlowError if dataflow does not answer or has not measured demand yet.
    """
    since_s = at - min((change.at for change in changes), default=at)
    if since_s < MIN_DURATION_S:
        return None
    answer = await port.what_if(_question(pools, since_s))
    hours = (answer.ended_at - answer.began_at) / 3600
    is_priced = answer.dollars > 0 or answer.recorded_dollars > 0
    node_hours = answer.recorded_dollars if is_priced else sum(answer.recorded_node_hours.values())
    rule_node_hours = answer.dollars if is_priced else sum(answer.node_hours.values())
    wait_hours, rule_wait_hours = answer.recorded_wait * hours, answer.wait * hours
    return LiveScore(
        began_at=answer.began_at,
        ended_at=answer.ended_at,
        changes=len(changes),
        reports=answer.reports,
        is_priced=is_priced,
        cost=cost(node_hours=node_hours, wait_hours=wait_hours),
        rule_cost=cost(node_hours=rule_node_hours, wait_hours=rule_wait_hours),
        node_hours=node_hours,
        rule_node_hours=rule_node_hours,
        wait_hours=wait_hours,
        rule_wait_hours=rule_wait_hours,
    )


def _question(pools: Sequence[Pool], since_s: float) -> WhatIfQuestion:
    bounds: dict[str, Json] = {
        pool.spec.id: {
            "mode": pool.spec.mode.value,
            "min_nodes": pool.spec.min_nodes,
            "max_nodes": pool.spec.max_nodes,
            "launch_delay_s": max(1.0, pool.launch_delay_s),
        }
        for pool in pools
    }
    if since_s <= SECOND_RESOLUTION_S:
        return WhatIfQuestion(pools=bounds, resolution_s=1, limit=math.ceil(since_s))
    return WhatIfQuestion(pools=bounds, resolution_s=60, limit=math.ceil(since_s / 60))


def cost(*, node_hours: float, wait_hours: float) -> float:
    """J = node-hours + k * wait-hours, with node-hours weighted by price over one dollar an hour.

    AstraFlow's rule is tuned for J; k is the value of one hour of a waiting trainer in nodes.
    """
    return node_hours + WAIT_WEIGHT * wait_hours
