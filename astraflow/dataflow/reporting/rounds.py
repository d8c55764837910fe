"""Rounds of evaluations that ended, kept to be looked at when the run has ended too."""

from collections.abc import Iterable

from astraflow.archive.rounds import KEPT_ROUNDS, PUT, TRIM, round_columns
from astraflow.contract.evaluations import EvaluationReport
from astraflow.dataflow.reporting.archive import Archive


class KeptRounds:
    """Writes them to the archive, beside the journal: a run is taken up from that, and looked at in this."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def add(self, report: EvaluationReport) -> None:
        """A round ended; the oldest gives way when there are too many."""
        columns = round_columns(report)
        self._archive.put(PUT, *columns, size_bytes=len(columns[1]), is_kept=True)
        self._archive.put(TRIM, KEPT_ROUNDS)

    def restore(self, ended: Iterable[EvaluationReport]) -> None:
        """Put back what a crash took from the archive, or what an archive that began anew never had."""
        for report in ended:
            self.add(report)
