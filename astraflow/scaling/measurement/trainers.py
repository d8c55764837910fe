"""Tracks one policy's trainer in reports: compute time of steps, waits, and usable groups."""

from collections import deque
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean

from astraflow.contract.reports.report import StreamReport
from astraflow.scaling.measurement.signals import StreamSignals
from astraflow.scaling.measurement.windows import Window

STEPS = 10
"""Latest steps whose times are kept. Count."""

YIELD_WINDOW_S = 1800.0
"""Window over which the share of usable groups is measured."""


@dataclass(frozen=True, slots=True)
class _Step:
    compute_s: float
    wait_s: float
    trained: int
    admitted: int


@dataclass(slots=True)
class TrainerTracker:
    """Accumulates one trainer's reports into signals.

    Reports count a wait when its step has ended. Until then, the tracker holds the current or just ended wait.
    """

    last: StreamReport
    stepped_at: float
    """Time at which the last step ended. Unix seconds."""
    open_wait_s: float = 0.0
    waiting_since: float | None = None
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=STEPS))
    waits_300: Window[float] = field(default_factory=lambda: Window(300.0))
    waits_600: Window[float] = field(default_factory=lambda: Window(600.0))
    usable: Window[tuple[float, float]] = field(default_factory=lambda: Window(YIELD_WINDOW_S))

    def observe(self, stream: StreamReport, *, at: float) -> None:
        """Adds the next report. at: Unix seconds."""
        training, before = stream.training, self.last.training
        new_steps = training.steps - before.steps
        if new_steps > 0:
            if not self.steps:
                self._forget_start()
            compute_s = training.compute_s + training.publish_s - before.compute_s - before.publish_s
            step = _Step(
                compute_s=compute_s / new_steps,
                wait_s=(training.wait_s - before.wait_s) / new_steps,
                trained=stream.groups.trained,
                admitted=stream.groups.admitted,
            )
            self.steps.extend([step] * min(new_steps, STEPS))
            self.open_wait_s, self.waiting_since, self.stepped_at = 0.0, None, at
        if stream.training.is_waiting:
            self.waiting_since = at if self.waiting_since is None else self.waiting_since
            self.open_wait_s = at - self.waiting_since
        self.last = stream

    @property
    def waited_s(self) -> float:
        """Seconds waited in total, including a current wait."""
        return self.last.training.wait_s + self.open_wait_s

    @property
    def step_s(self) -> float:
        """Mean duration of the latest steps including waits. Seconds; 0 before the first step.

        `fmean` is exact. `sum` rounds differently since Python 3.12, which moved the end of a window by a report.
        """
        return fmean(step.compute_s + step.wait_s for step in self.steps) if self.steps else 0.0

    def signals(self, *, at: float, produced: float) -> StreamSignals:
        """Returns the trainer's signals. produced: episodes finished since the first report, in groups."""
        stream, waited_s = self.last, self.waited_s
        wasted = sum(stream.groups.dropped.values())
        self.usable.add(at, (produced, float(stream.groups.admitted - wasted)))
        self.waits_300.add(at, waited_s)
        self.waits_600.add(at, waited_s)
        produced_groups, usable_groups = (
            produced - self.usable.oldest[1][0],
            stream.groups.admitted - wasted - self.usable.oldest[1][1],
        )
        computed, waited = fsum(step.compute_s for step in self.steps), fsum(step.wait_s for step in self.steps)
        return StreamSignals(
            policy=stream.policy,
            compute_s=tuple(step.compute_s for step in self.steps),
            groups_per_step=stream.groups.trained / stream.training.steps
            if stream.training.steps
            else float(stream.batch_groups),
            produced_per_usable=self._produced_per_usable(produced_groups, usable_groups),
            wait_share_300_s=_wait_share(self.waits_300, at, waited_s),
            wait_share_600_s=_wait_share(self.waits_600, at, waited_s),
            step_age_s=max(0.0, at - self.stepped_at),
            steps=stream.training.steps,
            wait_share_of_steps=waited / (waited + computed) if waited + computed > 0 else 0.0,
            consumed_per_entered=self._consumed_per_entered(),
        )

    def _forget_start(self) -> None:
        """Begins the windows again at the first step: before it, nodes started, and finished episodes of groups that
        were open. Neither returns."""
        for window in (self.waits_300, self.waits_600, self.usable):
            window.clear()

    def _produced_per_usable(self, produced: float, usable: float) -> float:
        """Returns produced groups per usable group, with a prior of one batch, because few groups are a noisy
        measurement."""
        batch = float(self.last.batch_groups)
        return max(1.0, (produced + batch) / (max(0.0, usable) + batch))

    def _consumed_per_entered(self) -> float:
        first, last = (self.steps[0], self.steps[-1]) if self.steps else (None, None)
        if first is None or last is None or last.admitted <= first.admitted:
            return 1.0
        return (last.trained - first.trained) / (last.admitted - first.admitted)


def _wait_share(window: Window[float], at: float, waited_s: float) -> float:
    since, before = window.oldest
    return min(1.0, max(0.0, waited_s - before) / (at - since)) if at > since else 0.0
