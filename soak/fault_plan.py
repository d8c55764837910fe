"""Schedule of the faults: a pure function of the seed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

PAUSE_S = 1.0
"""Longest pause in seconds before a killed process is restarted."""

KILLS = 0.7
"""Share of kills among the faults."""

SHORT_S = (0.2, 1.5)
LONG_S = (2.5, 6.0)
"""Seconds that other faults last; the long ones outlast a lease."""

LONG_FAULT_SHARE = 0.25


class LinkFault(Enum):
    """Faults of a network link."""

    DELAY = "delay"
    """All data arrives late."""
    STALL = "stall"
    """No data arrives, without an error; then transfer resumes where it stopped."""
    HALF_OPEN = "half open"
    """No data arrives, without an error; then the connections break."""
    TEAR = "tear"
    """Every connection breaks in the middle of its next data."""
    REFUSE = "refuse"
    """Every connection breaks, and new ones are refused for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """`kill -9`, and a restart some time later."""

    process: str
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """SIGSTOP, and SIGCONT some time later."""

    process: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """SIGTERM: the process shuts down, and is restarted some time after its end."""

    process: str
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DisturbLink:
    """Fault of a link between a process and a service."""

    link: str
    trouble: LinkFault
    for_s: float


Fault: TypeAlias = Kill | Stop | End | DisturbLink


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFault:
    """A fault, and the seconds since the previous one."""

    after_s: float
    fault: Fault


def faults(
    seed: int, *, weights: Mapping[str, float], nodes: Sequence[str], links: Sequence[str]
) -> Iterator[ScheduledFault]:
    """Yields faults without end, a kill a second on average.

    weights: relative frequency of each process; nodes: processes that may get SIGTERM.
    """
    source = random.Random(f"soak/{seed}")
    while True:
        after_s = source.expovariate(1 / KILLS)
        yield ScheduledFault(after_s=after_s, fault=_fault(source, weights, nodes, links))


def _fault(source: random.Random, weights: Mapping[str, float], nodes: Sequence[str], links: Sequence[str]) -> Fault:
    process = source.choices(list(weights), list(weights.values()))[0]
    kind = source.random()
    if kind < KILLS:
        return Kill(process=process, pause_s=source.uniform(0, PAUSE_S))
    if kind < KILLS + 0.1:
        return Stop(process=process, for_s=_duration(source))
    if kind < KILLS + 0.15:
        return End(process=source.choice(nodes), pause_s=source.uniform(0, PAUSE_S))
    return DisturbLink(link=source.choice(links), trouble=source.choice(list(LinkFault)), for_s=_duration(source))


def _duration(source: random.Random) -> float:
    return source.uniform(*(LONG_S if source.random() < LONG_FAULT_SHARE else SHORT_S))
