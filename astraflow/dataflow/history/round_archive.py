"""Archive of ended evaluation rounds, readable when the run has ended too."""

from collections.abc import Iterable

from astraflow.archive.evaluation_rounds import DELETE_OLD_ROUNDS, INSERT_ROUND, MAX_STORED_ROUNDS, round_columns
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.dataflow.history.archive import Archive


class RoundArchive:
    """Writes ended rounds to the archive, in addition to the journal: runs resume from the journal, people read the
    archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def add(self, report: EvaluationReport) -> None:
        """Stores an ended round; deletes the oldest beyond the limit."""
        columns = round_columns(report)
        self._archive.put(INSERT_ROUND, *columns, size_bytes=len(columns[1]), must_keep=True)
        self._archive.put(DELETE_OLD_ROUNDS, MAX_STORED_ROUNDS)

    def restore(self, ended: Iterable[EvaluationReport]) -> None:
        """Restores rounds that the archive lost in a crash, or that a new archive never had."""

        for report in ended:
            self.add(report)
