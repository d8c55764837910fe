"""Budgets of the maintainer: usage and limits of a wake and of a day (UTC)."""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.contract.fleet.maintainer import Budget, TranscriptEntry
from astraflow.runtime.clock import DAY_S, Clock, UtcDay
from maintainer.agent.config import DayBudget, WakeBudget
from maintainer.agent.llm.interface import Usage
from maintainer.agent.transcript.transcript import Kind


@dataclass(slots=True, kw_only=True)
class BudgetUse:
    """Usage in a wake or a day."""

    wakes: int = 0
    tool_calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Seconds of completed wakes."""
    usd: float = 0.0


class Budgets:
    """Budgets of one process; a day's usage is restored from the transcript."""

    def __init__(self, wake: WakeBudget, day: DayBudget, clock: Clock) -> None:
        self._wake_limits = wake
        self._day_limits = day
        self._clock = clock
        self._began_at = clock.now()
        self._ended_s: float | None = 0.0
        self.today = UtcDay(clock)
        """Day of the budgets; it only moves forward."""
        self.wake = BudgetUse()
        self.day = BudgetUse()

    def restore(self, entries: Iterable[TranscriptEntry]) -> None:
        """Restores the usage of today and of the latest wake from the transcript."""
        entries, began_at, is_awake = tuple(entries), 0.0, False
        self.today.include(max((entry.at for entry in entries), default=0.0))
        midnight = self.today.number * DAY_S
        for entry in entries:
            if entry.kind == Kind.WAKE.value:
                self.wake, began_at, is_awake = BudgetUse(), entry.at, True
            if is_awake:
                _count(self.wake, entry)
                self._ended_s = entry.at - began_at
            if entry.kind == Kind.SLEEP.value:
                is_awake, self._ended_s = False, self.wake.seconds
            if entry.at >= midnight:
                _count(self.day, entry)
        if is_awake and began_at >= midnight:  # its process ended during the wake
            self.day.seconds += self.duration_s

    def begin(self) -> None:
        """Opens the budget of a new wake."""
        self._start_new_day()
        self.wake, self._began_at, self._ended_s = BudgetUse(wakes=1), self._clock.now(), None
        self.day.wakes += 1

    def end(self) -> None:
        """Closes the wake's budget; its duration counts to the day in which it ends."""
        if self._ended_s is None:
            self._start_new_day()
            self._ended_s = self.duration_s
            self.day.seconds += self._ended_s

    def count_turn(self, usage: Usage, usd: float) -> None:
        """Counts a turn that was answered, or that failed after use."""
        self._start_new_day()
        for use in (self.wake, self.day):
            use.tokens += usage.total
            use.usd += usd

    def count_tool_call(self) -> None:
        """Counts one tool call."""
        self._start_new_day()
        for use in (self.wake, self.day):
            use.tool_calls += 1

    @property
    def duration_s(self) -> float:
        """Duration of the current wake, or of the latest, seconds."""
        return self._clock.now() - self._began_at if self._ended_s is None else self._ended_s

    @property
    def left_s(self) -> float:
        """Time left in the wake and the day, whichever is less, seconds."""
        return max(0.0, min(self._wake_limits.duration_s - self.duration_s, self._day_limits.duration_s - self._day_s))

    @property
    def left_tokens(self) -> int:
        """Tokens left in the wake and the day, whichever is less."""
        return max(0, min(self._wake_limits.tokens - self.wake.tokens, self._day_limits.tokens - self.day.tokens))

    @property
    def left_calls(self) -> int:
        """Tool calls left in the wake and the day, whichever is less."""
        left = min(
            self._wake_limits.tool_calls - self.wake.tool_calls, self._day_limits.tool_calls - self.day.tool_calls
        )
        return max(0, left)

    @property
    def left_usd(self) -> float:
        """US dollars left in the wake and the day, whichever is less."""
        return max(0.0, min(self._wake_limits.usd - self.wake.usd, self._day_limits.usd - self.day.usd))

    def tightest(self, unit: str) -> Budget:
        """Budget of this unit (wake or day) with less left."""
        lines = [line for line in self.day_lines() + self.wake_lines() if line.unit == unit]
        return min(lines, key=lambda line: line.limit - line.used)

    def exhausted_for_turn(self, *, needs_tokens: int, needs_usd: float) -> Budget | None:
        """First budget that the next turn would exceed; None if it fits. The wakes of the day do not limit a turn."""
        lines = [line for line in self.day_lines() + self.wake_lines() if line.unit != "wakes"]
        needs = {"tokens": needs_tokens, "usd": needs_usd}
        for line in lines:
            needed = needs.get(line.unit, 0)
            if line.used >= line.limit or line.used + needed > line.limit:
                return line
        return None

    def exhausted_for_day(self) -> Budget | None:
        """First spent budget of today; None if another wake may start."""
        self._start_new_day()
        return next((line for line in self.day_lines() if line.used >= line.limit), None)

    def wake_lines(self) -> tuple[Budget, ...]:
        """Budgets of the wake."""
        limits, use = self._wake_limits, self.wake
        return (
            Budget(scope="wake", unit="tool_calls", used=use.tool_calls, limit=limits.tool_calls),
            Budget(scope="wake", unit="tokens", used=use.tokens, limit=limits.tokens),
            Budget(scope="wake", unit="seconds", used=round(self.duration_s, 1), limit=limits.duration_s),
            Budget(scope="wake", unit="usd", used=use.usd, limit=limits.usd),
        )

    def day_lines(self) -> tuple[Budget, ...]:
        """Budgets of the day."""
        self._start_new_day()
        limits, use = self._day_limits, self.day
        return (
            Budget(scope="day", unit="wakes", used=use.wakes, limit=limits.wakes),
            Budget(scope="day", unit="tool_calls", used=use.tool_calls, limit=limits.tool_calls),
            Budget(scope="day", unit="tokens", used=use.tokens, limit=limits.tokens),
            Budget(scope="day", unit="seconds", used=round(self._day_s, 1), limit=limits.duration_s),
            Budget(scope="day", unit="usd", used=use.usd, limit=limits.usd),
        )

    @property
    def _day_s(self) -> float:
        """Seconds of today's wakes, the current one included."""
        return self.day.seconds + (self.duration_s if self._ended_s is None else 0.0)

    def _start_new_day(self) -> None:
        if self.today.has_changed():
            self.day = BudgetUse()


def _count(use: BudgetUse, entry: TranscriptEntry) -> None:
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
