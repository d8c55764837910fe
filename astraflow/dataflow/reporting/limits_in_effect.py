"""Limits in effect: constraints that keep targets below or above the demand, with an event at their begin and end.

The sizer lists the limits of each pool at every tick. This module turns them into one record at the begin and one at
the end. A limit that is absent for some ticks is the same limit until it has been absent for `LIMIT_ENDED_AFTER_S`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.fleet.recommendations import PoolRecommendation, Reason
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record
from astraflow.contract.values import Json

LIMIT_ENDED_AFTER_S = 120.0
"""A limit that was absent for this long has ended. Seconds."""

HOLD_REASONS = (
    Reason.STALE_INPUT,
    Reason.STALLED,
    Reason.PAUSED,
    Reason.LAUNCHES_FAILING,
    Reason.PARTIAL_NODES,
    Reason.GATED,
)
"""Reasons for which the sizer keeps a target unchanged at any demand."""


class LimitsInEffect:
    """Limits of every pool, with the times at which each began and was last seen."""

    def __init__(self) -> None:
        self._known: dict[PoolId, dict[str, tuple[float, float]]] = {}
        """Name of a limit or hold reason -> Unix seconds of the first and the latest tick."""

    def observe(self, recommendation: PoolRecommendation, *, has_moved: bool) -> tuple[Record, ...]:
        """Adds the next tick of one pool; returns its records.

        has_moved: True if the target has changed; the record of that change already has the limits.
        """
        times_by_limit = self._known.setdefault(recommendation.pool, {})
        present = dict.fromkeys([*(limit.value for limit in recommendation.limited_by), *_hold_reasons(recommendation)])
        began = [name for name in present if name not in times_by_limit]
        for name in present:
            times_by_limit[name] = (times_by_limit.get(name, (recommendation.at, 0.0))[0], recommendation.at)
        ended = [
            name for name, (_, seen_at) in times_by_limit.items() if recommendation.at - seen_at > LIMIT_ENDED_AFTER_S
        ]
        ended_records = [_ended(recommendation, name, *times_by_limit.pop(name)) for name in ended]
        limited = replace(recommendation.change, kind=RecordKind.TARGET_LIMITED)
        return (*([limited] if began and not has_moved else ()), *ended_records)

    def state_dict(self) -> dict[str, Json]:
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


def _ended(recommendation: PoolRecommendation, name: str, began_at: float, seen_at: float) -> Record:
    return Record(
        kind=RecordKind.LIMIT_ENDED,
        subject=recommendation.pool,
        actor=recommendation.policy,
        cause=name,
        values={
            "limit": name,
            "minutes": max(1, round((seen_at - began_at) / 60.0)),
            "target": recommendation.target,
        },
    )
