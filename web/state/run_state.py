"""State of a followed run as pages show it: the newest report, its history, and the connection."""

from dataclasses import dataclass, replace
from enum import Enum

from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.report import Report
from astraflow.runtime.clock import Clock
from web.history.points import Point, Series
from web.process_settings import STALE_AFTER_S
from web.state.annotations import AnnotationLog
from web.state.dataflow_graph import RecentCounts


class ConnectionState(Enum):
    """State of the connection to dataflow."""

    CONNECTING = "connecting"
    """No report has been received yet."""
    LIVE = "live"
    LOST = "lost"
    """Failed after it was live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Connection to dataflow, with the cause of a failure."""

    state: ConnectionState
    problem: str = ""
    next_try_at: float | None = None
    """Next attempt, on the clock's `now`; None while connected or connecting."""


class RunState:
    """Newest known state of the run. Written by the collector, read by everything else."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._received_at = 0.0
        self.report: Report | None = None
        self.series = Series()
        self.annotation_log = AnnotationLog()
        self.recent_counts = RecentCounts()
        self.connection = Connection(state=ConnectionState.CONNECTING)
        self.skipped_reports = 0
        """Reports and frames that could not be shown since this process started. Count."""

    @property
    def problems(self) -> tuple[Record, ...]:
        """Problems that stop the run, from the report, and reports that could not be shown."""
        reported = self.report.problems if self.report is not None else ()
        if not self.skipped_reports:
            return reported
        return (*reported, problem_record("reports_unshown", "", reports=self.skipped_reports))

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest report arrived; None before the first."""
        return None if self.report is None else self.clock.now() - self._received_at

    @property
    def is_stale(self) -> bool:
        """Whether the report is too old to act on."""
        age_s = self.age_s
        return age_s is None or age_s >= STALE_AFTER_S

    def add_past_report(self, report: Report) -> Point | None:
        """Adds a past report: its point, annotations and counts."""
        self.annotation_log.add_report(report)
        self.recent_counts.add(report)
        return self.series.add(report)

    def update(self, report: Report) -> Point | None:
        """Adds the newest report. Returns None when its point is already known."""
        point = self.add_past_report(report)
        self.report = report  # last, so that pages show the latest valid report
        self._received_at = self.clock.now()
        self.connection = Connection(state=ConnectionState.LIVE)
        return point

    def is_other_run(self, report: Report) -> bool:
        """Returns whether a report belongs to another run: another name, or a sequence that went back."""
        if self.report is None:
            return False
        return report.run != self.report.run or report.sequence < self.report.sequence

    def reset(self) -> None:
        """Clears everything for another run."""
        self.report = None
        self.series = Series()
        self.annotation_log = AnnotationLog()
        self.recent_counts = RecentCounts()

    @property
    def next_try_s(self) -> float | None:
        """Seconds until the next connection attempt; None while connected or connecting."""
        at = self.connection.next_try_at
        return None if at is None else max(0.0, at - self.clock.now())

    def record_failure(self, problem: str, *, next_try_s: float) -> None:
        """Records a failed connection, its cause, and in how many seconds it is retried."""
        state = ConnectionState.CONNECTING if self.report is None else ConnectionState.LOST
        self.connection = Connection(state=state, problem=problem, next_try_at=self.clock.now() + next_try_s)

    def record_retry(self) -> None:
        """Records that a connection attempt has started."""
        self.connection = replace(self.connection, next_try_at=None)
