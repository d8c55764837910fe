"""Counts of what could not be reported: a report, frame or row that fails is left out, and the run goes on."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from astraflow.runtime.logs import get_logger

log = get_logger()

KINDS = ("report", "frame", "metrics", "row_written", "row_read")
"""`report`: the state of one moment. `frame`: a report for a watcher. `metrics`: an answer to Prometheus.
`row_written`, `row_read`: of the archive."""


class Losses:
    """Counts by kind, since the process began."""

    def __init__(self) -> None:
        self._counts = Counter(dict.fromkeys(KINDS, 0))

    @property
    def counts(self) -> Mapping[str, int]:
        """By kind, each of `KINDS`."""
        return self._counts

    def add(self, kind: str, problem: Exception, **details: object) -> None:
        """Log and count what was left out."""
        self._counts[kind] += 1
        log.error("report_left_out", kind=kind, problem=repr(problem), count=self._counts[kind], **details)

    @contextmanager
    def counted(self, kind: str, **details: object) -> Iterator[None]:
        """Leave out what fails in the block."""
        try:
            yield
        except Exception as problem:  # whatever a peer has made a report hold that cannot be encoded
            self.add(kind, problem, **details)
