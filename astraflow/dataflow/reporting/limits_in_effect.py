"""Limits in effect: constraints that keep targets below or above the demand, with an event at their begin and end.

The sizer lists the limits of each pool at every tick. This module turns them into one event at the begin and one at the
end. A limit that is absent for some ticks is the same limit until it has been absent for `LIMIT_ENDED_AFTER_S`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.contract.fleet.recommendations import PoolRecommendation, Reason
from astraflow.contract.ids import PoolId
from astraflow.contract.values import Json
from astraflow.scaling.rule.explanations import LIMIT_TEXTS

LIMIT_ENDED_AFTER_S = 120.0
"""A limit that was absent for this long has ended. Seconds."""

HOLD_REASONS = {
    Reason.STALE_INPUT: "old measurements",
    Reason.STALLED: "nodes that are in use and finish nothing",
    Reason.PAUSED: "the pause of the run",
    Reason.LAUNCHES_FAILING: "requested nodes that do not arrive",
    Reason.PARTIAL_NODES: "nodes that serve some policies only",
    Reason.GATED: "the staleness gate, at which nodes wait",
}
"""Reasons for which the sizer keeps a target unchanged at any demand."""

_TEXTS = {limit.value: text for limit, text in LIMIT_TEXTS.items()} | {
    reason.value: text for reason, text in HOLD_REASONS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvent:
    """Event about a limit."""

    kind: str
    """`target_limited` or `limit_ended`."""
    pool: PoolId
    sentence: str


class LimitsInEffect:
    """Limits of every pool, with the times at which each began and was last seen."""

    def __init__(self) -> None:
        self._known: dict[PoolId, dict[str, tuple[float, float]]] = {}
        """Name of a limit or hold reason -> Unix seconds of the first and the latest tick."""

    def observe(self, recommendation: PoolRecommendation, *, has_moved: bool) -> tuple[LimitEvent, ...]:
        """Adds the next tick of one pool; returns its events.

        has_moved: True if the target has changed; the event of that change already has the sentence.
        """
        times_by_limit = self._known.setdefault(recommendation.pool, {})
        present = dict.fromkeys([*(limit.value for limit in recommendation.limited_by), *_hold_reasons(recommendation)])
        began = [name for name in present if name not in times_by_limit]
        for name in present:
            times_by_limit[name] = (times_by_limit.get(name, (recommendation.at, 0.0))[0], recommendation.at)
        began_event = LimitEvent(kind="target_limited", pool=recommendation.pool, sentence=recommendation.sentence)
        ended = [
            name for name, (_, seen_at) in times_by_limit.items() if recommendation.at - seen_at > LIMIT_ENDED_AFTER_S
        ]
        ended_events = [_limit_ended_event(recommendation, name, *times_by_limit.pop(name)) for name in ended]
        return (*([began_event] if began and not has_moved else ()), *ended_events)

    def state_dict(self) -> dict[str, Json]:
        """Returns the times of the limits in effect, by pool."""
        return {
            pool: {name: list(times) for name, times in times_by_limit.items()}
            for pool, times_by_limit in self._known.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self._known = {
            PoolId(pool): {name: (first, last) for name, (first, last) in times_by_limit.items()}
            for pool, times_by_limit in state.items()
        }


def _hold_reasons(recommendation: PoolRecommendation) -> list[str]:
    return [reason.value for reason in recommendation.reasons if reason in HOLD_REASONS]


def _limit_ended_event(recommendation: PoolRecommendation, name: str, began_at: float, seen_at: float) -> LimitEvent:
    minutes = (seen_at - began_at) / 60.0
    duration = f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute or less"
    sentence = f"{recommendation.pool}: no more held back by {_TEXTS.get(name, name)}, after {duration}; the target is "
    nodes = "node" if recommendation.target == 1 else "nodes"
    return LimitEvent(
        kind="limit_ended", pool=recommendation.pool, sentence=f"{sentence}{recommendation.target} {nodes}."
    )
