"""What keeps targets from where the demand would have them, told when it begins and when it ends.

The rule says at every tick what holds a pool back. One entry of the journal at the beginning and one at the end say the
same: a cap that comes and goes from tick to tick is one cap until it has been away for a while.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.contract.advice import PoolAdvice, Reason
from astraflow.contract.ids import PoolId
from astraflow.contract.values import Json
from astraflow.scaling.explain import CAPS

ENDED_S = 120.0
"""Without it for so long, it is over."""

HOLDS = {
    Reason.STALE_INPUT: "measurements that are old",
    Reason.PAUSED: "the run's pause",
    Reason.LAUNCHES_FAIL: "orders that do not arrive",
    Reason.GATED: "the staleness gate, at which nodes stand",
}
"""Reasons for which the rule leaves a target as it is, whatever the demand."""

_WORDS = {cap.value: words for cap, words in CAPS.items()} | {hold.value: words for hold, words in HOLDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One entry for the journal."""

    kind: str
    """`target_capped` or `cap_ended`."""
    pool: PoolId
    sentence: str


class Restraints:
    """Of every pool, since when each has held it back, and when it was last seen to."""

    def __init__(self) -> None:
        self._known: dict[PoolId, dict[str, tuple[float, float]]] = {}
        """Cap or hold -> Unix seconds of the first and the latest tick."""

    def observe(self, advice: PoolAdvice, *, has_moved: bool) -> tuple[Told, ...]:
        """The next tick of one pool; what is new about it. has_moved: another entry has the sentence already."""
        known = self._known.setdefault(advice.pool, {})
        held = dict.fromkeys([*(cap.value for cap in advice.capped_by), *_holds(advice)])
        began = [name for name in held if name not in known]
        for name in held:
            known[name] = (known.get(name, (advice.at, 0.0))[0], advice.at)
        told = [Told(kind="target_capped", pool=advice.pool, sentence=advice.sentence)]
        ended = [name for name, (_, seen_at) in known.items() if advice.at - seen_at > ENDED_S]
        over = [_over(advice, name, *known.pop(name)) for name in ended]
        return (*(told if began and not has_moved else ()), *over)

    def state_dict(self) -> dict[str, Json]:
        """What a restart goes on with."""
        return {pool: {name: list(times) for name, times in known.items()} for pool, known in self._known.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._known = {
            PoolId(pool): {name: (first, last) for name, (first, last) in known.items()}
            for pool, known in state.items()
        }


def _holds(advice: PoolAdvice) -> list[str]:
    return [reason.value for reason in advice.reasons if reason in HOLDS]


def _over(advice: PoolAdvice, name: str, began_at: float, seen_at: float) -> Told:
    minutes = (seen_at - began_at) / 60.0
    lasted = f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute or less"
    sentence = f"{advice.pool}: no more held back by {_WORDS.get(name, name)}, after {lasted}; the target is "
    nodes = "node" if advice.target == 1 else "nodes"
    return Told(kind="cap_ended", pool=advice.pool, sentence=f"{sentence}{advice.target} {nodes}.")
