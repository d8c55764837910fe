"""Evaluation rounds as tables: one table for each evaluation, a line for each policy of a round."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.ids import NodeId, PolicyId
from astraflow.contract.reports.evaluations import EvaluationReport
from web.components import formats


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTable:
    """The rounds of one evaluation, newest first."""

    name: str
    rounds: Sequence[EvaluationReport]

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores."""
        return tuple(dict.fromkeys(score.name for report in self.rounds for score in report.scores))

    @staticmethod
    def score(report: EvaluationReport, policy: PolicyId, name: str) -> str:
        """Returns a score of a round with its error; a dash for a missing one."""
        score = next((score for score in report.scores if (score.policy, score.name) == (policy, name)), None)
        return formats.reward(score.value, score.error) if score is not None else formats.MISSING

    @staticmethod
    def note(report: EvaluationReport) -> str:
        """Returns masked samples, failed prompts and reserved nodes; empty for none."""
        parts = [
            f"{formats.several(report.masked, 'sample')} masked" if report.masked else "",
            f"{formats.several(report.failed, 'prompt')} without samples" if report.failed else "",
            _reserved(report.reserved_nodes),
        ]
        return ", ".join(part for part in parts if part)


def evaluation_tables(rounds: Sequence[EvaluationReport]) -> tuple[EvaluationTable, ...]:
    """Returns the tables sorted by name; rounds keep their order."""
    by_name = {report.flow: [other for other in rounds if other.flow == report.flow] for report in rounds}
    return tuple(EvaluationTable(name=name, rounds=by_name[name]) for name in sorted(by_name))


def _reserved(nodes: Sequence[NodeId]) -> str:
    """Names the nodes that get no training tasks while the round runs; counts them beyond two."""
    if not nodes:
        return ""
    return f"reserves {' and '.join(nodes) if len(nodes) <= 2 else formats.several(len(nodes), 'node')}"
