"""Result of a simulated run: a record of each tick, and summary figures."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from astraflow.scaling.measurement.signals import Floats

RECOVERED_WAIT, RECOVERED_S = 0.05, 900.0
"""A run has recovered when the trainer waits at most this share of the following seconds."""

FLAP_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRecord:
    """State of a simulated run at one tick."""

    at_s: float
    ready: int
    pending: int
    """Pending and draining nodes: paid, not producing."""
    target: int
    needed: float
    """Nodes that the demand requires, if all were busy and of the usual kind."""
    waited_s: float
    """Seconds that the trainer has waited since the start."""
    node_s: float
    """Paid node seconds since the start."""
    dollars: float
    pools: tuple[int, ...] = ()
    """Targets by pool."""
    sentence: str = ""
    """Explanation of a changed target; empty without a change."""
    is_replacement: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Result of a simulated run."""

    ticks: tuple[TickRecord, ...]
    hours: float
    waited_s: float
    node_hours: float
    ideal_node_hours: float
    """Node hours of an ideal autoscaler: exactly the needed nodes, ordered one launch delay ahead."""
    dollars: float
    steps: int
    peak_ratio_after_event: float
    """Largest ratio of present to needed nodes from the first event on."""
    recovery_s: float
    """Seconds from the first event until the trainer hardly waits; 0 without an event."""
    pool_names: tuple[str, ...] = ()
    pool_node_hours: tuple[float, ...] = ()

    @property
    def wait(self) -> float:
        """Share of the time that the trainer waited."""
        return self.waited_s / (self.hours * 3600)

    @property
    def cost(self) -> float:
        """Ratio of node hours to the ideal; below 1 when there were too few nodes."""
        return self.node_hours / self.ideal_node_hours

    @property
    def actions(self) -> int:
        """Number of ticks that changed a target."""
        return len(self._moves())

    @property
    def flaps(self) -> int:
        """Number of changes against the previous direction within ten minutes, replacements excluded."""
        flaps, before = 0, None
        for at, step, is_replacement in self._moves():
            if is_replacement:
                continue
            if before is not None and before[1] * step < 0 and at - before[0] <= FLAP_S:
                flaps += 1
            before = (at, step)
        return flaps

    def _moves(self) -> list[tuple[float, int, bool]]:
        moves = []
        for before, after in pairwise(self.ticks):
            if before.pools != after.pools:
                moves.append((after.at_s, after.target - before.target, after.is_replacement))
        return moves


def recovery_s(times_s: Floats, waited_s: Floats, event_s: float) -> float:
    """Returns the seconds from an event until the share of waiting over the next 15 minutes is small.

    times_s, waited_s: [tick], the latter cumulative.
    """
    for at in times_s[times_s >= event_s]:
        begun, ended = np.interp([at, at + RECOVERED_S], times_s, waited_s)
        span = min(RECOVERED_S, float(times_s[-1]) - float(at))
        if span <= 0 or (ended - begun) / span <= RECOVERED_WAIT:
            return float(at - event_s)
    return float(times_s[-1] - event_s)
