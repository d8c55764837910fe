"""What-if comparison: replays dataflow's record with other bounds of a pool, and with the current ones."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.fleet.recommendations import PoolRecommendation, WhatIfAnswer, WhatIfQuestion

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
    control: ControlPlaneClient, pool: Pool, bounds: Mapping[str, Any], *, options: Mapping[str, Any], hours: float
) -> BoundsComparison:
    """Runs both replays. bounds: of the pool, as in `dataflow.pools`. Raises: as the control plane's `what_if`."""
    spec = pool.spec
    current_bounds: dict[str, Any] = {"mode": spec.mode.value, "min_nodes": spec.min_nodes, "max_nodes": spec.max_nodes}
    limit = max(2, min(20_000, round(hours * 60)))
    questions = (
        WhatIfQuestion(pools={spec.id: current_bounds}, limit=limit),
        WhatIfQuestion(options=options, pools={spec.id: current_bounds | dict(bounds)}, limit=limit),
    )
    current, changed = await asyncio.gather(*(_answer(control, question) for question in questions))
    return BoundsComparison(pool=spec.id, current=current, changed=changed)


async def _answer(control: ControlPlaneClient, question: WhatIfQuestion) -> WhatIfAnswer:
    """Replays the whole run by the minute; a run with too few points by the second."""
    answer = await control.what_if(question)
    if answer.reports >= MIN_MINUTE_POINTS:
        return answer
    seconds = WhatIfQuestion(options=question.options, pools=question.pools, resolution_s=1, limit=900)
    return await control.what_if(seconds)


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
