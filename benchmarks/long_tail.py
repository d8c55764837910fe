"""Long-tailed episodes: what ordering by predicted length, and issuing more members than needed, change.

    python -m benchmarks.long_tail            # about 3 minutes

Virtual time around a real stream (tests/dataflow/simulated_stream.py): groups of 8, steps of 1 s, episodes of 1 s on
average whose duration is lognormal, in halves by their prompt and by chance (sigma 0.9 each). 300 steps of which the
first 100 are left out, three seeds.

Orders see the prompt's true mean, so a real prediction gains less. Of a group of 8 + k members the first 8 results
count and the others are cut.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import mean, median

from tests.dataflow.simulated_stream import PULL_S, SLOTS, Demand, SimulatedStream

STEPS, WARM_UP, SEEDS = 300, 100, 3
SIGMA = 0.9
BASE = Demand(nodes=0, max_staleness=8, batch_groups=32, group_size=8, step_s=1.0, step_noise=0.1, episode_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How members of groups are issued."""

    name: str
    extra: int = 0
    """Members beyond the size of a group."""
    ahead: int = 1
    """Groups among whose members a free slot chooses the one with the longest prompt."""


POLICIES = (
    Policy(name="as issued"),
    Policy(name="longest of 8 groups first", ahead=8),
    Policy(name="10 members, 2 cut", extra=2),
)


class LongTail(SimulatedStream):
    """Nodes whose episodes are as long as their prompts and chance make them."""

    def __init__(self, demand: Demand, policy: Policy) -> None:
        super().__init__(demand)
        self._policy = policy
        self._factors: dict[int, float] = {}
        """Mean duration of the episodes of each open group, as a factor."""
        self._members: dict[int, dict[int, float]] = {}
        """Running members of each open group, with their durations. Seconds."""
        self._numbers = count()
        self._groups: dict[int, int] = {}
        """Group of each member that runs, or was cut and has not been noticed yet."""
        self.first_to_last_s: list[float] = []
        self.trained_s: list[float] = []
        """Durations of the episodes whose results count. Seconds."""
        self._first_at: dict[int, float] = {}

    def _lease(self) -> None:
        while self._busy < self._slots:
            while len(set(self._queue)) < self._policy.ahead and self._may_issue():
                self._issue()
            if not self._queue:
                return
            self._start(max(self._queue, key=self._factors.__getitem__) if self._policy.ahead > 1 else self._queue[0])

    def _issue(self) -> None:
        ordinal = self.stream.counts.issued
        self.stream.counts.issued += 1
        self._open[ordinal] = (self.now, self.demand.group_size, [])
        self._factors[ordinal] = self._chance.lognormvariate(-(SIGMA**2) / 2, SIGMA)
        self._members[ordinal] = {}
        self._queue += [ordinal] * (self.demand.group_size + self._policy.extra)

    def _start(self, ordinal: int) -> None:
        self._queue.remove(ordinal)
        self._open[ordinal][2].append(self._served)
        self._busy += 1
        factor = self._factors[ordinal] * self._chance.lognormvariate(-(SIGMA**2) / 2, SIGMA)
        member = next(self._numbers)
        self._members[ordinal][member] = self.demand.episode_s * factor
        self._groups[member] = ordinal
        self._at(self.demand.episode_s * factor, "episode", member)

    def _end_episode(self, member: int) -> None:
        ordinal = self._groups.pop(member)
        if ordinal not in self._open or member not in self._members[ordinal]:
            return  # it was cut
        self.trained_s.append(self._members[ordinal].pop(member))
        self._first_at.setdefault(ordinal, self.now)
        if self._open[ordinal][1] == 1:
            self.first_to_last_s.append(self.now - self._first_at.pop(ordinal))
            self._busy -= len(self._members.pop(ordinal))
            self._queue = [queued for queued in self._queue if queued != ordinal]
        super()._end_episode(ordinal)


def measure(demand: Demand, policy: Policy) -> Sequence[float]:
    """Returns the share of the time that the trainer waited, the mean age in versions, the median seconds from the
    first to the last result of a group, steps per second, and the mean duration of trained episodes."""
    runs = []
    for seed in range(SEEDS):
        stream = LongTail(replace(demand, seed=seed), policy)
        stream.run(steps=STEPS)
        waited = sum(max(0.0, wait - PULL_S) for wait in stream.waits_s[WARM_UP:])
        computed = sum(stream.steps_s[WARM_UP:])
        spread, length = median(stream.first_to_last_s), mean(stream.trained_s)
        age = mean(stream.ages[WARM_UP:])
        runs.append((waited / (waited + computed), age, spread, stream.steps / stream.now, length))
    return [mean(values) for values in zip(*runs, strict=True)]


def main() -> None:
    """Prints a row for each bound, capacity and policy."""
    sys.stdout.write("| bound | slots of need | issued | waits | age | first to last, s | steps/s | length |\n")
    sys.stdout.write(f"|{'---|' * 8}\n")
    for max_staleness, capacity in ((0, 1.0), (1, 1.0), (8, 1.0), (8, 1.5)):
        nodes = round(capacity * BASE.batch_groups * BASE.group_size / SLOTS)
        demand = replace(BASE, nodes=nodes, max_staleness=max_staleness, is_paced=True)
        for policy in POLICIES:
            waits, age, spread, rate, length = measure(demand, policy)
            sys.stdout.write(
                f"| {max_staleness} | {capacity:g} | {policy.name} | {waits:.1%} | {age:.2f} | {spread:.2f} | "
                f"{rate:.2f} | {length:.2f} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
