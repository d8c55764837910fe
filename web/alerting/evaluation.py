"""Evaluates one rule on one run: which series fire. Pure: times come from the values.

quiet --condition holds--> pending --for `hold`--> firing --condition does not hold for `clear`--> quiet
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from web.alerting.rules import CHANGES, EVENT, Condition, RuleSpec, Unit

MIN_CLEAR_S = 30.0
MIN_CLEAR_STEPS = 3.0
EVENT_CLEAR_S = 300.0
"""Time without the event after which its alert is resolved, seconds."""

NODE_SILENCE_S = 60.0
"""Time without values after which a node's series is resolved: the node has left. Seconds."""

MAX_SUBJECTS = 5000
"""Series of one rule and run whose past is kept for a change; further ones are not watched."""

MAX_PAST = 600
"""Values of a series that are kept for a change."""


@dataclass(slots=True)
class Firing:
    """A series whose condition holds."""

    value: float | None
    """Latest value while the condition held; None without one."""
    text: str = ""
    """Text of the record that occurred."""
    clear_since: float | None = None
    """Position since which the condition does not hold; None while it holds."""


@dataclass(slots=True)
class _Past:
    """Values of a series within the window of a change."""

    points: deque[tuple[float, float]] = field(default_factory=deque)

    def changes(self, position: float, value: float, window: float) -> tuple[float, float]:
        """Adds a value; returns how much it is above the lowest and below the highest one of the window."""
        points = self.points
        while points and points[0][0] < position - window:
            points.popleft()
        if not points or position - points[-1][0] >= window / MAX_PAST:
            points.append((position, value))
        numbers = [number for _, number in points]
        return value - min(numbers), max(numbers) - value


class RuleWatch:
    """State of one rule on one run. A position is a time in Unix seconds, or a step for rules in steps."""

    def __init__(self, spec: RuleSpec, *, since: float, firing: Mapping[str, float | None] | None = None) -> None:
        """since: time from which on the rule is evaluated. firing: series that fired before a restart."""
        self.spec = spec
        self.firing: dict[str, Firing] = {subject: Firing(value) for subject, value in (firing or {}).items()}
        self.pending: dict[str, float] = {}
        """Position since which the condition holds, by series."""
        self.since = since
        self.last_at = since
        """Time of the latest value of any series. Unix seconds."""
        self._past: dict[str, _Past] = {}
        self._seen_at: dict[str, float] = {}
        limit = math.inf if spec.threshold is None else spec.threshold
        self.low = limit if spec.condition is Condition.BELOW else -math.inf
        self.high = limit if spec.condition is Condition.ABOVE else math.inf
        self.is_compared = spec.condition in (Condition.ABOVE, Condition.BELOW)
        is_steps = spec.unit is Unit.STEPS
        self._hold = max(0.0, spec.hold - 1.0) if is_steps else spec.hold
        least = MIN_CLEAR_STEPS if is_steps else EVENT_CLEAR_S if spec.kind == EVENT else MIN_CLEAR_S
        self._clear = max(spec.hold, least) - (1.0 if is_steps else 0.0)

    @property
    def is_idle(self) -> bool:
        """True while no series is pending or fires."""
        return not self.pending and not self.firing

    def add(self, subject: str, value: float, *, at: float, position: float) -> None:
        """Adds a value of a series. position: its step for a rule in steps, else its time."""
        self.last_at = max(self.last_at, at)
        condition = self.spec.condition
        if condition is Condition.ABSENT:
            return
        if condition is not Condition.NOT_FINITE and not math.isfinite(value):
            return
        self._seen_at[subject] = at
        self.set(subject, holds=self._holds(subject, value, position), value=value, position=position)

    def add_occurrences(self, texts: Mapping[str, str], *, at: float) -> None:
        """Adds the records of a report: texts of those that match, by subject."""
        for subject, text in texts.items():
            self.set(subject, holds=True, value=None, position=at, text=text)
        for subject in [subject for subject in (*self.pending, *self.firing) if subject not in texts]:
            self.set(subject, holds=False, value=None, position=at)

    def advance(self, at: float) -> None:
        """Evaluates what depends on time alone: absent values, and nodes that have left."""
        if self.spec.condition is Condition.ABSENT:
            silent_s = at - self.last_at
            if silent_s >= self.spec.hold:
                self.firing.setdefault(self.spec.series, Firing(None))
            else:
                self.firing.clear()
        elif self.spec.kind == "node" and not self.is_idle:
            for subject in [*self.pending, *self.firing]:
                if at - self._seen_at.setdefault(subject, at) > NODE_SILENCE_S:
                    self.pending.pop(subject, None)
                    self.firing.pop(subject, None)

    def set(self, subject: str, *, holds: bool, value: float | None, position: float, text: str = "") -> None:
        """Advances the state of a series by whether its condition holds at a position."""
        firing = self.firing.get(subject)
        if holds:
            if firing is not None:
                firing.value, firing.text, firing.clear_since = value, text, None
            elif position - self.pending.setdefault(subject, position) >= self._hold:
                del self.pending[subject]
                self.firing[subject] = Firing(value, text)
            return
        self.pending.pop(subject, None)
        if firing is not None:
            firing.clear_since = position if firing.clear_since is None else firing.clear_since
            if position - firing.clear_since >= self._clear:
                del self.firing[subject]

    def _holds(self, subject: str, value: float, position: float) -> bool:
        condition = self.spec.condition
        if condition is Condition.NOT_FINITE:
            return not math.isfinite(value)
        if condition not in CHANGES:
            return value > self.high or value < self.low
        past = self._past.get(subject)
        if past is None:
            if len(self._past) >= MAX_SUBJECTS:
                return False
            past = self._past[subject] = _Past()
        rise, fall = past.changes(position, value, self.spec.window)
        change = {Condition.ROSE: rise, Condition.FELL: fall}.get(condition, max(rise, fall))
        return change > (self.spec.threshold or 0.0)
