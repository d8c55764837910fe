"""Counts of reports, frames and rows that failed: they are left out, and the run continues."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from astraflow.runtime.logs import get_logger

log = get_logger()

KINDS = ("report", "frame", "metrics", "row_written", "row_read", "examination")
"""`report`: the state at one time. `frame`: a report for a watcher. `metrics`: an answer to Prometheus.
`row_written`, `row_read`: a row of the archive. `examination`: of the run's learning."""


class Losses:
    """Counts by kind since the process began."""

    def __init__(self) -> None:
        self._counts = Counter(dict.fromkeys(KINDS, 0))

    @property
    def counts(self) -> Mapping[str, int]:
        """Count for each of `KINDS`."""
        return self._counts

    def add(self, kind: str, problem: Exception, **details: object) -> None:
        """Logs and counts a loss."""
        self._counts[kind] += 1
        log.error("report_lost", kind=kind, problem=repr(problem), count=self._counts[kind], **details)

    @contextmanager
    def counting(self, kind: str, **details: object) -> Iterator[None]:
        """Counts an error of the block and suppresses it."""
        try:
            yield
        except Exception as problem:  # a report may contain values of a peer that cannot be encoded
            self.add(kind, problem, **details)
