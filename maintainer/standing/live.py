"""What a run came to with the maintainer's changes, beside what the rule alone would have made of the same demand.

Dataflow plays the rule over the reports that it has recorded (`WhatIf`), from the maintainer's first change on, with
the bounds that the fleet service has. Both sides are measured alike: nodes as they were there, and the waiting that
capacity below the demand explains. In the replay every launch works and no node is lost: where they do not, the rule
looks better than it could have been.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from astraflow.contract.advice import WhatIfAnswer, WhatIfQuestion
from astraflow.contract.fleet import Actor, Decision, Pool
from astraflow.contract.maintenance import LiveScore
from astraflow.contract.values import Json
from maintainer.standing.worth import cost

MOST_S = 86400.0
"""Older changes are over."""
BY_SECOND_S = 900.0
"""Dataflow keeps every report for so long; older ones by the minute."""
LEAST_S = 60.0
"""Less says nothing."""


class ReplayPort(Protocol):
    """What is asked of dataflow: the control plane's client is one."""

    async def what_if(self, question: WhatIfQuestion) -> WhatIfAnswer:
        """The rule, played over what is recorded."""


def changes_of(actor: Actor, decisions: Sequence[Decision], *, at: float) -> list[Decision]:
    """The changes of the last day that an agent wanted and that were made, also those that a person approved."""
    return [one for one in decisions if one.kind == "apply" and one.actor == actor and at - one.at <= MOST_S]


async def live_score(
    port: ReplayPort, changes: Sequence[Decision], pools: Sequence[Pool], *, at: float
) -> LiveScore | None:
    """Since the first of `changes`; None without one, or too soon after it.

    at: now, Unix seconds. Raises: AstraFlowError when dataflow does not answer, or has not measured any demand yet.
    """
    since_s = at - min((one.at for one in changes), default=at)
    if since_s < LEAST_S:
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
    if since_s <= BY_SECOND_S:
        return WhatIfQuestion(pools=bounds, resolution_s=1, limit=math.ceil(since_s))
    return WhatIfQuestion(pools=bounds, resolution_s=60, limit=math.ceil(since_s / 60))
