"""What the pages know of the run: the newest report, its history, and how the feed is doing."""

from dataclasses import dataclass, replace
from enum import Enum

from astraflow.contract.reports import Report
from astraflow.runtime.clock import Clock
from web.feed.arrows import RecentCounts
from web.feed.pins import Pinned
from web.history.points import Point, Series
from web.settings import STALE_AFTER_S


class FeedState(Enum):
    """The connection to dataflow."""

    CONNECTING = "connecting"
    """Nothing has arrived yet."""
    LIVE = "live"
    LOST = "lost"
    """It failed after it was live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How the connection to dataflow is doing, with the cause when it is not well."""

    state: FeedState
    problem: str = ""
    next_try_at: float | None = None
    """By the clock's `now`; None while it is being tried, and while all is well."""


class RunState:
    """Written by the collector, read by everything else."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._received_at = 0.0
        self.report: Report | None = None
        self.series = Series()
        self.pinned = Pinned()
        self.recent = RecentCounts()
        self.feed = Feed(state=FeedState.CONNECTING)
        self.skipped = 0
        """Reports and frames that could not be shown since this process began. Count."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """What the report says keeps the run from going on, and what this page left out."""
        told = self.report.troubles if self.report is not None else ()
        if not self.skipped:
            return told
        return (*told, f"This page cannot show {self.skipped} of the reports that came; its log says why.")

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest report arrived; None before the first."""
        return None if self.report is None else self.clock.now() - self._received_at

    @property
    def is_stale(self) -> bool:
        """Whether what the pages show is too old to act on."""
        age_s = self.age_s
        return age_s is None or age_s >= STALE_AFTER_S

    def fill(self, report: Report) -> Point | None:
        """Take a report of the past: its point, and what is pinned."""
        self.pinned.see(report)
        self.recent.see(report)
        return self.series.add(report)

    def update(self, report: Report) -> Point | None:
        """Take the newest report. None when its point is already there."""
        point = self.fill(report)
        self.report = report  # after what can fail: pages show the latest report that can be shown
        self._received_at = self.clock.now()
        self.feed = Feed(state=FeedState.LIVE)
        return point

    def is_other_run(self, report: Report) -> bool:
        """Whether a report continues nothing of what is shown: another name, or a sequence that went back."""
        if self.report is None:
            return False
        return report.run != self.report.run or report.sequence < self.report.sequence

    def forget(self) -> None:
        """Begin anew, for another run."""
        self.report = None
        self.series = Series()
        self.pinned = Pinned()
        self.recent = RecentCounts()

    @property
    def next_try_s(self) -> float | None:
        """Seconds until dataflow is dialled again; None while that goes on, and while all is well."""
        at = self.feed.next_try_at
        return None if at is None else max(0.0, at - self.clock.now())

    def lose(self, problem: str, *, next_try_s: float) -> None:
        """Note that the feed failed, why, and in how many seconds it is tried again."""
        state = FeedState.CONNECTING if self.report is None else FeedState.LOST
        self.feed = Feed(state=state, problem=problem, next_try_at=self.clock.now() + next_try_s)

    def trying(self) -> None:
        """Note that dataflow is being dialled."""
        self.feed = replace(self.feed, next_try_at=None)
