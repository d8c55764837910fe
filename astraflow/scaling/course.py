"""The course of a simulated run: what happened at each tick, and the figures that it is judged by."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from astraflow.scaling.signals import Floats

RECOVERED_WAIT, RECOVERED_S = 0.05, 900.0
"""Recovered is when the trainer waits for no more than this share of the next so many seconds."""

FLAP_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One tick."""

    at_s: float
    ready: int
    pending: int
    """And draining: paid, not producing."""
    target: int
    needed: float
    """Nodes that would just do, if all were of the usual kind and busy."""
    waited_s: float
    """By the trainer, since the start."""
    node_s: float
    """Paid node seconds, since the start."""
    dollars: float
    pools: tuple[int, ...] = ()
    """Targets by pool."""
    sentence: str = ""
    """Why a target moved; empty when none did."""
    is_replacement: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All of it."""

    moments: tuple[Moment, ...]
    hours: float
    waited_s: float
    node_hours: float
    ideal_node_hours: float
    """Of somebody who knows the future: as many nodes as are needed, ordered one launch delay ahead."""
    dollars: float
    steps: int
    peak_after: float
    """Largest number of nodes, from the first event on, over what was needed then."""
    recovery_s: float
    """From the first event until the trainer hardly waits any more; 0 without an event."""
    pool_names: tuple[str, ...] = ()
    pool_node_hours: tuple[float, ...] = ()

    @property
    def wait(self) -> float:
        """Share of the time for which the trainer waited."""
        return self.waited_s / (self.hours * 3600)

    @property
    def cost(self) -> float:
        """Node hours over the ideal; below 1 when there were too few nodes."""
        return self.node_hours / self.ideal_node_hours

    @property
    def actions(self) -> int:
        """Ticks that moved a target."""
        return len(self._moves())

    @property
    def flaps(self) -> int:
        """Moves against the one before within ten minutes; a replacement grows and shrinks, and does not count."""
        found, before = 0, None
        for at, step, is_replacement in self._moves():
            if is_replacement:
                continue
            if before is not None and before[1] * step < 0 and at - before[0] <= FLAP_S:
                found += 1
            before = (at, step)
        return found

    def _moves(self) -> list[tuple[float, int, bool]]:
        moves = []
        for before, after in pairwise(self.moments):
            if before.pools != after.pools:
                moves.append((after.at_s, after.target - before.target, after.is_replacement))
        return moves


def recovery_s(times_s: Floats, waited_s: Floats, event_s: float) -> float:
    """Seconds from an event until the share of waiting over the next 15 minutes is small.

    times_s, waited_s: [tick], the latter cumulative.
    """
    for at in times_s[times_s >= event_s]:
        begun, ended = np.interp([at, at + RECOVERED_S], times_s, waited_s)
        span = min(RECOVERED_S, float(times_s[-1]) - float(at))
        if span <= 0 or (ended - begun) / span <= RECOVERED_WAIT:
            return float(at - event_s)
    return float(times_s[-1] - event_s)
