"""Evaluation rounds as tables: one table for each evaluation, a line for each policy of a round."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from astraflow.contract.ids import NodeId, PolicyId
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from web.components import formats

TONES = {
    EvaluationState.WAITING: "off",
    EvaluationState.RUNNING: "busy",
    EvaluationState.DONE: "good",
    EvaluationState.STOPPED: "off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One policy in one evaluation round."""

    round: int
    policy: str
    version: str
    state: str
    tone: str
    scores: tuple[str, ...]
    """Scores in the order of the table's names; a dash for a missing score."""
    samples: str
    note: str
    """Masked samples, failed prompts and reserved nodes; empty for none."""
    at: float
    """End of the round, or its start while it runs: Unix seconds."""
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTable:
    """The rounds of one evaluation, newest first."""

    name: str
    names: tuple[str, ...]
    """Names of the scores."""
    rows: tuple[RoundRow, ...]


def evaluation_tables(rounds: Sequence[EvaluationReport]) -> tuple[EvaluationTable, ...]:
    """Returns the tables sorted by name; rounds keep their order."""
    by_name = {report.flow: [other for other in rounds if other.flow == report.flow] for report in rounds}
    return tuple(_table(name, by_name[name]) for name in sorted(by_name))


def _table(name: str, rounds: Sequence[EvaluationReport]) -> EvaluationTable:
    names = tuple(dict.fromkeys(score.name for report in rounds for score in report.scores))
    rows = tuple(_row(report, policy, names) for report in rounds for policy in report.versions)
    return EvaluationTable(name=name, names=names, rows=rows)


def _row(report: EvaluationReport, policy: PolicyId, names: Iterable[str]) -> RoundRow:
    scores = {score.name: formats.reward(score.value, score.error) for score in report.scores if score.policy == policy}
    return RoundRow(
        round=report.round,
        policy=policy,
        version=f"v{report.versions[policy]}",
        state=report.state.value,
        tone=TONES[report.state],
        scores=tuple(scores.get(name, formats.MISSING) for name in names),
        samples=f"{formats.count(report.done)} of {formats.count(report.total)}",
        note=_note(report),
        at=report.finished_at or report.started_at or report.requested_at,
        requested_by=f"{report.actor}: {report.reason}",
    )


def _note(report: EvaluationReport) -> str:
    parts = [
        f"{formats.several(report.masked, 'sample')} masked" if report.masked else "",
        f"{formats.several(report.failed, 'prompt')} without samples" if report.failed else "",
        _reserved(report.reserved_nodes),
    ]
    return ", ".join(part for part in parts if part)


def _reserved(nodes: Sequence[NodeId]) -> str:
    """Names the nodes that get no training tasks while the round runs; counts them beyond two."""
    if not nodes:
        return ""
    return f"reserves {' and '.join(nodes) if len(nodes) <= 2 else formats.several(len(nodes), 'node')}"
