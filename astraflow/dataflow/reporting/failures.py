"""Recognizes a run that cannot continue, because every episode fails."""

from collections import Counter

from astraflow.contract.reports.report import NodeState, Report
from astraflow.contract.rollouts.failures import Boundary

FAILING_S = 60.0
"""A run in which every episode has failed for this long cannot continue. Seconds."""

PAUSE_S = 30.0
"""A longer time without a failed episode is a pause, after which `FAILING_S` begins again. Seconds."""

MIN_FAILED = 4
"""Episodes that must have failed before all of them count as failing. Count."""

_FAILED = tuple(f"failed_{boundary.value}" for boundary in Boundary if boundary is not Boundary.ENGINE)
"""Outcomes that count. An engine that loads or restarts fails for a while and then works, so its failures do not."""


class TotalFailure:
    """Fold over the reports of a run.

    The clock starts with the first failure. It starts again after a step, an accepted episode or a pause, and while no
    node is ready or a trainer does not wait for its batch.
    """

    def __init__(self) -> None:
        self._progress: tuple[int, int] | None = None
        """Steps and accepted episodes at the latest report."""
        self._failed = 0
        """Failed episodes at the latest report. Count."""
        self._failed_before = 0
        """Failed episodes when the clock was set back. Count."""
        self._first_at: float | None = None
        """Time of the first failure since then; None before it. Unix seconds."""
        self._latest_at = 0.0
        """Time of the latest failure. Unix seconds."""

    def observe(self, report: Report) -> bool:
        """Returns True once every episode has failed for `FAILING_S` without a pause, and no step was trained."""
        episodes = Counter[str]()
        for flow in report.flows:
            episodes.update(flow.episodes)
        failed = sum(episodes[outcome] for outcome in _FAILED)
        progress = (sum(stream.training.steps for stream in report.streams), episodes["accepted"])
        if progress != self._progress or failed < self._failed or not _waits_for_episodes(report):
            self._progress, self._failed = progress, failed
            self._failed_before, self._first_at = failed, None
            return False
        if failed == self._failed:
            return False
        if self._first_at is None or report.at - self._latest_at > PAUSE_S:
            self._failed_before, self._first_at = self._failed, report.at
        self._failed, self._latest_at = failed, report.at
        return failed - self._failed_before >= MIN_FAILED and report.at - self._first_at >= FAILING_S


def _waits_for_episodes(report: Report) -> bool:
    """Returns whether only successful episodes are missing: trainers wait, and a node serves."""
    is_served = any(node.state is NodeState.READY for node in report.nodes)
    return is_served and all(stream.training.is_waiting for stream in report.streams)
