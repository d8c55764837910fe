"""What-if comparison: replays dataflow's record with other bounds of a pool, and with the current ones."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.fleet.recommendations import PoolRecommendation, WhatIfAnswer, WhatIfQuestion
from web.requests.context import RequestContext

MIN_MINUTE_POINTS = 5
"""Minimum points by the minute; shorter records are replayed by the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsComparison:
    """Two replays of the same record: with current and with changed options."""

    pool: str
    current: WhatIfAnswer
    changed: WhatIfAnswer

    def recommendations(self, answer: WhatIfAnswer) -> list[PoolRecommendation]:
        """Targets of the pool, oldest first."""
        return [recommendation for recommendation in answer.recommendations if recommendation.pool == self.pool]


async def compare_bounds(
    context: RequestContext, pool: str, bounds: Mapping[str, Any], *, options: Mapping[str, Any], hours: float
) -> BoundsComparison:
    """Runs both replays. bounds: of the pool, as in `dataflow.pools`. Raises: as the control plane's `what_if`."""
    pool_state = context.fleet_state.pool(pool)
    current_bounds: dict[str, Any] = (
        {
            "mode": pool_state.spec.mode.value,
            "min_nodes": pool_state.spec.min_nodes,
            "max_nodes": pool_state.spec.max_nodes,
        }
        if pool_state
        else {}
    )
    limit = max(2, min(20_000, round(hours * 60)))
    questions = (
        WhatIfQuestion(pools={pool: current_bounds} if current_bounds else {}, limit=limit),
        WhatIfQuestion(options=options, pools={pool: current_bounds | dict(bounds)}, limit=limit),
    )
    current, changed = await asyncio.gather(*(_answer(context, question) for question in questions))
    return BoundsComparison(pool=pool, current=current, changed=changed)


async def _answer(context: RequestContext, question: WhatIfQuestion) -> WhatIfAnswer:
    """Replays the whole run by the minute; a run with too few points by the second."""
    answer = await context.control.what_if(question)
    if answer.reports >= MIN_MINUTE_POINTS:
        return answer
    seconds = WhatIfQuestion(options=question.options, pools=question.pools, resolution_s=1, limit=900)
    return await context.control.what_if(seconds)


def figures(answers: BoundsComparison, of: str) -> Sequence[float]:
    """Changed, current and recorded value of `node_hours`, `usd` or `wait`."""
    current, changed, pool = answers.current, answers.changed, answers.pool
    return {
        "node_hours": (
            changed.node_hours.get(pool, 0.0),
            current.node_hours.get(pool, 0.0),
            current.recorded_node_hours.get(pool, 0.0),
        ),
        "usd": (changed.dollars, current.dollars, current.recorded_dollars),
        "wait": (changed.wait, current.wait, current.recorded_wait),
    }[of]
