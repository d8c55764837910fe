"""What the maintainer has used of what it may use, in a wake and in a day (UTC)."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.contract.maintenance import Budget, TranscriptEntry
from astraflow.runtime.clock import Clock
from maintainer.config import DayBudget, WakeBudget
from maintainer.llm.base import Usage
from maintainer.transcript import Kind

DAY_S = 86400.0


@dataclass(slots=True, kw_only=True)
class Use:
    """What was used."""

    wakes: int = 0
    tool_calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Of wakes that are over."""
    usd: float = 0.0


class Budgets:
    """One for the process; what a day has used survives it in the transcript."""

    def __init__(self, wake: WakeBudget, day: DayBudget, clock: Clock) -> None:
        self._of_wake = wake
        self._of_day = day
        self._clock = clock
        self._began_at = clock.now()
        self._ended_s: float | None = 0.0
        self._today = self._date()
        self.wake = Use()
        self.day = Use()

    def restore(self, entries: Iterable[TranscriptEntry]) -> None:
        """Take in what the transcript says of today, and of the latest wake."""
        midnight, began_at, is_awake = self._today * DAY_S, 0.0, False
        for entry in entries:
            if entry.kind == Kind.WAKE.value:
                self.wake, began_at, is_awake = Use(), entry.at, True
            if is_awake:
                _count(self.wake, entry)
                self._ended_s = entry.at - began_at
            if entry.kind == Kind.SLEEP.value:
                is_awake, self._ended_s = False, self.wake.seconds
            if entry.at >= midnight:
                _count(self.day, entry)
        if is_awake and began_at >= midnight:  # its process ended in the middle of it
            self.day.seconds += self.duration_s

    def begin(self) -> None:
        """A wake begins."""
        self._turn_over()
        self.wake, self._began_at, self._ended_s = Use(wakes=1), self._clock.now(), None
        self.day.wakes += 1

    def end(self) -> None:
        """It is over; its time counts to the day in which it ends."""
        if self._ended_s is None:
            self._turn_over()
            self._ended_s = self.duration_s
            self.day.seconds += self._ended_s

    def asked(self, usage: Usage, usd: float) -> None:
        """A turn was answered, or failed after having used something."""
        self._turn_over()
        for use in (self.wake, self.day):
            use.tokens += usage.total
            use.usd += usd

    def called(self) -> None:
        """A tool was called."""
        self._turn_over()
        for use in (self.wake, self.day):
            use.tool_calls += 1

    @property
    def duration_s(self) -> float:
        """Of this wake, or of the last one."""
        return self._clock.now() - self._began_at if self._ended_s is None else self._ended_s

    @property
    def left_s(self) -> float:
        """Of this wake, and of the day."""
        return max(0.0, min(self._of_wake.duration_s - self.duration_s, self._of_day.duration_s - self._day_s))

    @property
    def left_tokens(self) -> int:
        """Of this wake, and of the day."""
        return max(0, min(self._of_wake.tokens - self.wake.tokens, self._of_day.tokens - self.day.tokens))

    @property
    def left_calls(self) -> int:
        """Of this wake, and of the day."""
        left = min(self._of_wake.tool_calls - self.wake.tool_calls, self._of_day.tool_calls - self.day.tool_calls)
        return max(0, left)

    @property
    def left_usd(self) -> float:
        """Of this wake, and of the day."""
        return max(0.0, min(self._of_wake.usd - self.wake.usd, self._of_day.usd - self.day.usd))

    def nearest(self, unit: str) -> Budget:
        """Of a wake's and a day's budget, the one of which less is left."""
        lines = [line for line in self.day_lines() + self.wake_lines() if line.unit == unit]
        return min(lines, key=lambda line: line.limit - line.used)

    def spent(self, *, needs_tokens: int, needs_usd: float) -> Budget | None:
        """What does not allow another turn of so much; a wake that has begun may end its day's last."""
        lines = [line for line in self.day_lines() + self.wake_lines() if line.unit != "wakes"]
        needs = {"tokens": needs_tokens, "usd": needs_usd}
        for line in lines:
            needed = needs.get(line.unit, 0)
            if line.used >= line.limit or line.used + needed > line.limit:
                return line
        return None

    def day_spent(self) -> Budget | None:
        """What does not allow another wake today."""
        self._turn_over()
        return next((line for line in self.day_lines() if line.used >= line.limit), None)

    def wake_lines(self) -> tuple[Budget, ...]:
        """Of the wake."""
        limits, use = self._of_wake, self.wake
        return (
            Budget(scope="wake", unit="tool_calls", used=use.tool_calls, limit=limits.tool_calls),
            Budget(scope="wake", unit="tokens", used=use.tokens, limit=limits.tokens),
            Budget(scope="wake", unit="seconds", used=round(self.duration_s, 1), limit=limits.duration_s),
            Budget(scope="wake", unit="usd", used=use.usd, limit=limits.usd),
        )

    def day_lines(self) -> tuple[Budget, ...]:
        """Of the day."""
        self._turn_over()
        limits, use = self._of_day, self.day
        return (
            Budget(scope="day", unit="wakes", used=use.wakes, limit=limits.wakes),
            Budget(scope="day", unit="tool_calls", used=use.tool_calls, limit=limits.tool_calls),
            Budget(scope="day", unit="tokens", used=use.tokens, limit=limits.tokens),
            Budget(scope="day", unit="seconds", used=round(self._day_s, 1), limit=limits.duration_s),
            Budget(scope="day", unit="usd", used=use.usd, limit=limits.usd),
        )

    def seconds_to_midnight(self) -> float:
        """In UTC."""
        return DAY_S - self._clock.wall() % DAY_S

    @property
    def _day_s(self) -> float:
        """In wakes, the one that goes on included."""
        return self.day.seconds + (self.duration_s if self._ended_s is None else 0.0)

    def _turn_over(self) -> None:
        if self._date() != self._today:
            self._today, self.day = self._date(), Use()

    def _date(self) -> int:
        return int(self._clock.wall() // DAY_S)


def _count(use: Use, entry: TranscriptEntry) -> None:
    body = entry.body
    if entry.kind == Kind.WAKE.value:
        use.wakes += 1
    elif entry.kind == Kind.TOOL.value:
        use.tool_calls += 1
    elif entry.kind == Kind.SLEEP.value:
        duration_s = body.get("duration_s")
        use.seconds += float(duration_s) if isinstance(duration_s, int | float) else 0.0
    elif entry.kind in (Kind.RESPONSE.value, Kind.FAILURE.value):
        usage = body.get("usage")
        if isinstance(usage, dict):
            use.tokens += sum(int(tokens) for tokens in usage.values() if isinstance(tokens, int))
        usd = body.get("usd")
        use.usd += float(usd) if isinstance(usd, int | float) else 0.0
