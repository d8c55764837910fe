"""One policy's trainer as reports show it: how long its steps compute, how long it waits, what it makes use of."""

from collections import deque
from dataclasses import dataclass, field

from astraflow.contract.reports import StreamReport
from astraflow.scaling.signals import StreamSignals
from astraflow.scaling.windows import Window

STEPS = 10
YIELD_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Step:
    compute_s: float
    wait_s: float
    trained: int
    admitted: int


@dataclass(slots=True)
class TrainerWatch:
    """Fed with one report after the other.

    A report counts a wait when its step has ended; until then the wait that goes on, or has just ended, is held here.
    """

    last: StreamReport
    stepped_at: float
    """Unix seconds."""
    held_s: float = 0.0
    waiting_since: float | None = None
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=STEPS))
    waits_300: Window[float] = field(default_factory=lambda: Window(300.0))
    waits_600: Window[float] = field(default_factory=lambda: Window(600.0))
    usable: Window[tuple[float, float]] = field(default_factory=lambda: Window(YIELD_S))

    def observe(self, stream: StreamReport, *, at: float) -> None:
        """The next report, at Unix seconds."""
        made = stream.steps - self.last.steps
        if made > 0:
            compute_s = stream.compute_s + stream.publish_s - self.last.compute_s - self.last.publish_s
            step = _Step(
                compute_s=compute_s / made,
                wait_s=(stream.wait_s - self.last.wait_s) / made,
                trained=stream.trained,
                admitted=stream.admitted,
            )
            self.steps.extend([step] * min(made, STEPS))
            self.held_s, self.waiting_since, self.stepped_at = 0.0, None, at
        if stream.is_waiting:
            self.waiting_since = at if self.waiting_since is None else self.waiting_since
            self.held_s = at - self.waiting_since
        self.last = stream

    @property
    def waited_s(self) -> float:
        """In all, with a wait that goes on."""
        return self.last.wait_s + self.held_s

    @property
    def step_s(self) -> float:
        """Mean duration of its latest steps, with their waits; 0 before the first."""
        return sum(step.compute_s + step.wait_s for step in self.steps) / len(self.steps) if self.steps else 0.0

    def signals(self, *, at: float, produced: float) -> StreamSignals:
        """As the sizer takes them. produced: groups' worth of episodes that nodes finished since the first report."""
        stream, waited_s = self.last, self.waited_s
        wasted = sum(stream.dropped.values())
        self.usable.add(at, (produced, float(stream.admitted - wasted)))
        self.waits_300.add(at, waited_s)
        self.waits_600.add(at, waited_s)
        made, used = produced - self.usable.oldest[1][0], stream.admitted - wasted - self.usable.oldest[1][1]
        computed, waited = sum(step.compute_s for step in self.steps), sum(step.wait_s for step in self.steps)
        return StreamSignals(
            policy=stream.policy,
            compute_s=tuple(step.compute_s for step in self.steps),
            groups_per_step=stream.trained / stream.steps if stream.steps else float(stream.batch_groups),
            produced_per_usable=self._produced_per_usable(made, used),
            wait_300_s=_share(self.waits_300, at, waited_s),
            wait_600_s=_share(self.waits_600, at, waited_s),
            step_age_s=max(0.0, at - self.stepped_at),
            steps=stream.steps,
            wait_of_versions=waited / (waited + computed) if waited + computed > 0 else 0.0,
            consumed_over_entered=self._used(),
        )

    def _produced_per_usable(self, made: float, used: float) -> float:
        """The first batch is taken to need no more than it holds: a few groups say little about what filters take."""
        batch = float(self.last.batch_groups)
        return max(1.0, (made + batch) / (max(0.0, used) + batch))

    def _used(self) -> float:
        first, last = (self.steps[0], self.steps[-1]) if self.steps else (None, None)
        if first is None or last is None or last.admitted <= first.admitted:
            return 1.0
        return (last.trained - first.trained) / (last.admitted - first.admitted)


def _share(window: Window[float], at: float, waited_s: float) -> float:
    since, before = window.oldest
    return min(1.0, max(0.0, waited_s - before) / (at - since)) if at > since else 0.0
