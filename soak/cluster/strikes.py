"""Schedule of the faults of a cluster: a pure function of the seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DATABASE, BUCKET, LINK, MACHINE = "database", "bucket", "link", "machine"
"""Targets besides the processes of the run: the services below it, the link of the hosts, and nodes of the fleet."""

LONGEST_S = 5.0
"""Longest time that a target is away, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault: a target is killed or cut off, and is back after `away_s`."""

    after_s: float
    """Seconds since the previous fault."""
    target: str
    away_s: float


def strikes(seed: int, processes: Sequence[str], *, every_s: float) -> Iterator[Strike]:
    """Yields faults without end, one in `every_s` seconds on average; first each target once."""
    source = random.Random(f"cluster/{seed}")
    targets = [*processes, DATABASE, BUCKET, LINK, MACHINE]
    once = source.sample(targets, len(targets))
    while True:
        after_s = source.expovariate(1 / every_s)
        target = once.pop() if once else source.choice(targets)
        yield Strike(after_s=after_s, target=target, away_s=source.uniform(0.0, LONGEST_S))
