"""Other bounds for a pool, played over what dataflow has recorded, beside the bounds as they are."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.advice import PoolAdvice, WhatIfAnswer, WhatIfQuestion
from web.parts import Parts

YOUNG_POINTS = 5
"""A record of fewer minutes is read by the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two replays of the same record: with the options as they are, and with others."""

    pool: str
    now: WhatIfAnswer
    then: WhatIfAnswer

    def sizes(self, answer: WhatIfAnswer) -> list[PoolAdvice]:
        """The pool's targets, oldest first."""
        return [advice for advice in answer.advice if advice.pool == self.pool]


async def compared(
    parts: Parts, pool: str, bounds: Mapping[str, Any], *, options: Mapping[str, Any], hours: float
) -> Compared:
    """Ask twice. bounds: of the pool, as `dataflow.pools` has them. Raises: as the control plane's `what_if`."""
    known = parts.fleet_state.pool(pool)
    own: dict[str, Any] = (
        {"mode": known.spec.mode.value, "min_nodes": known.spec.min_nodes, "max_nodes": known.spec.max_nodes}
        if known
        else {}
    )
    limit = max(2, min(20_000, round(hours * 60)))
    asked = (
        WhatIfQuestion(pools={pool: own} if own else {}, limit=limit),
        WhatIfQuestion(options=options, pools={pool: own | dict(bounds)}, limit=limit),
    )
    now, then = await asyncio.gather(*(_answer(parts, question) for question in asked))
    return Compared(pool=pool, now=now, then=then)


async def _answer(parts: Parts, question: WhatIfQuestion) -> WhatIfAnswer:
    """From the points of the whole run; a run so young that it has too few of them, from the last seconds."""
    answer = await parts.control.what_if(question)
    if answer.reports >= YOUNG_POINTS:
        return answer
    seconds = WhatIfQuestion(options=question.options, pools=question.pools, resolution_s=1, limit=900)
    return await parts.control.what_if(seconds)


def figures(answers: Compared, of: str) -> Sequence[float]:
    """With the others, as they are, as it was: `node_hours`, `usd` or `wait`."""
    now, then, pool = answers.now, answers.then, answers.pool
    return {
        "node_hours": (
            then.node_hours.get(pool, 0.0),
            now.node_hours.get(pool, 0.0),
            now.recorded_node_hours.get(pool, 0.0),
        ),
        "usd": (then.dollars, now.dollars, now.recorded_dollars),
        "wait": (then.wait, now.wait, now.recorded_wait),
    }[of]
