"""Names what keeps the running round of an evaluation from having its tasks run: a fold over reports.

A round whose tasks run has no problem, however long they take.
"""

from collections.abc import Iterable, Mapping, Sequence

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.records import Record, problem_record
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from astraflow.contract.values import Value

HELD_S = 10.0
"""A cause is reported when it holds for this long. Seconds."""

ERROR_PREFIX = "evaluation: "
"""Begin of the errors of a node that could not serve pinned versions."""


class EvaluationMonitor:
    """Compares each report with the previous ones."""

    def __init__(self, served_policies: Mapping[FlowId, Sequence[PolicyId]]) -> None:
        """served_policies: policies that a node must serve, for each evaluation."""
        self._served_policies = served_policies
        self._stalls: dict[FlowId, tuple[Record, float]] = {}
        """Current problem, and the time since which it holds, in seconds after the start."""

    def problems(self, report: Report) -> tuple[Record, ...]:
        """Returns a problem for each round whose tasks do not run. Call it once for each report, in order."""
        running = [round_ for round_ in report.evaluations if round_.state is EvaluationState.RUNNING]
        stalls = {round_.flow: stall for round_ in running if (stall := self._stall(report, round_))}
        self._stalls = {
            flow: (stall, self._stalls[flow][1])
            if flow in self._stalls and self._stalls[flow][0] == stall
            else (stall, report.uptime_s)
            for flow, stall in stalls.items()
        }
        return tuple(stall for stall, since in self._stalls.values() if report.uptime_s - since >= HELD_S)

    def _stall(self, report: Report, round_: EvaluationReport) -> Record | None:
        """Returns why no node runs a task of the round; None while one does."""
        nodes = [
            node
            for node in report.nodes
            if node.state is NodeState.READY and node.facts.serves(self._served_policies[round_.flow])
        ]
        if round_.reserved_nodes or any(node.gauges.get("evaluation_running") for node in nodes):
            return None
        if not nodes:
            return _problem("evaluation_unserved", round_)
        modes = {node.facts.evaluation_mode for node in nodes}
        if modes == {EvaluationMode.NONE}:
            return _problem("evaluation_untaken", round_, nodes=len(nodes))
        if modes <= {EvaluationMode.NONE, EvaluationMode.SERVED_VERSION} and not _is_served(round_, nodes):
            return _problem("evaluation_versions", round_, versions=_versions_text(round_.versions))
        errors = (error for node in nodes for error in reversed(node.errors) if error.startswith(ERROR_PREFIX))
        error = next(errors, "")
        return _problem("evaluation_error", round_, error=error) if error else None


def _problem(cause: str, round_: EvaluationReport, **values: Value) -> Record:
    return problem_record(cause, round_.flow, evaluation=round_.flow, **values)


def _is_served(round_: EvaluationReport, nodes: Iterable[NodeReport]) -> bool:
    return any(
        all(node.versions.get(policy) == version for policy, version in round_.versions.items())
        for node in nodes
        if node.facts.evaluation_mode is EvaluationMode.SERVED_VERSION
    )


def _versions_text(versions: Mapping[PolicyId, int]) -> str:
    return ", ".join(f"version {version} of {policy!r}" for policy, version in versions.items())
