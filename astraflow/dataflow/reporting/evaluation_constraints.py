"""Names what keeps the running round of an evaluation from having its tasks run: a fold over reports.

A round whose tasks run has no problem, however long they take.
"""

from collections.abc import Iterable, Mapping, Sequence

from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationState
from astraflow.contract.reports.report import NodeReport, NodeState, Report

HELD_S = 10.0
"""A cause is reported when it holds for this long. Seconds."""

ERROR_PREFIX = "evaluation: "
"""Begin of the errors of a node that could not serve pinned versions."""


class EvaluationMonitor:
    """Compares each report with the previous ones."""

    def __init__(self, served_policies: Mapping[FlowId, Sequence[PolicyId]]) -> None:
        """served_policies: policies that a node must serve, for each evaluation."""
        self._served_policies = served_policies
        self._causes: dict[FlowId, tuple[str, float]] = {}
        """Current cause, and the time since which it holds, in seconds after the start."""

    def problems(self, report: Report) -> tuple[str, ...]:
        """Returns a sentence for each round whose tasks do not run. Call it once for each report, in order."""
        running = [round_ for round_ in report.evaluations if round_.state is EvaluationState.RUNNING]
        causes = {round_.flow: cause for round_ in running if (cause := self._cause(report, round_))}
        self._causes = {
            flow: (cause, self._causes[flow][1])
            if self._causes.get(flow, ("", 0.0))[0] == cause
            else (cause, report.uptime_s)
            for flow, cause in causes.items()
        }
        return tuple(
            f"the evaluation {flow!r} does not run: {cause}"
            for flow, (cause, since) in self._causes.items()
            if report.uptime_s - since >= HELD_S
        )

    def _cause(self, report: Report, round_: EvaluationReport) -> str:
        """Returns why no node runs a task of the round; empty while one does."""
        nodes = [
            node
            for node in report.nodes
            if node.state is NodeState.READY and node.facts.serves(self._served_policies[round_.flow])
        ]
        if round_.reserved_nodes or any(node.gauges.get("evaluation_running") for node in nodes):
            return ""
        if not nodes:
            return "no node that serves its policies is ready"
        modes = {node.facts.evaluation_mode for node in nodes}
        if modes == {EvaluationMode.NONE}:
            return f"none of the {len(nodes)} ready nodes takes evaluation tasks: set nodes.evaluates = true on one"
        if modes <= {EvaluationMode.NONE, EvaluationMode.SERVED_VERSION} and not _is_served(round_, nodes):
            return (
                f"it needs {_versions_text(round_.versions)}, and its nodes serve other versions, which another party "
                "loads: stop it and evaluate the version that they serve, or let a node with its own engine join"
            )
        return next((error for node in nodes for error in reversed(node.errors) if error.startswith(ERROR_PREFIX)), "")


def _is_served(round_: EvaluationReport, nodes: Iterable[NodeReport]) -> bool:
    return any(
        all(node.versions.get(policy) == version for policy, version in round_.versions.items())
        for node in nodes
        if node.facts.evaluation_mode is EvaluationMode.SERVED_VERSION
    )


def _versions_text(versions: Mapping[PolicyId, int]) -> str:
    return ", ".join(f"version {version} of {policy!r}" for policy, version in versions.items())
