"""Reserves nodes whose only engine serves the pinned versions of an evaluation."""

from collections.abc import Iterator, Sequence
from math import floor

from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.reports.report import NodeState
from astraflow.dataflow.evaluation.evaluation import Evaluation
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run


class Reservations:
    """Decides which nodes serve evaluations with their only engine: at most a share of them, and at least one.

    training ──a round has tasks, the share has room──► reserved, finishes its training tasks ──► serves the round
       ▲                                                                                               │
       └──the round has no more tasks for it; or it was lost, drains or cannot load the versions ◄─────┘

    The other nodes get no evaluation tasks, and follow the newest versions as if there was no evaluation.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def is_reserved(self, node: NodeId) -> bool:
        """Returns whether a round has reserved the node."""
        return any(node in evaluation.reserved_nodes for evaluation in self._run.evaluations.values())

    def reserve(self, node: Node, rounds: Sequence[Evaluation], *, takes_tasks: bool) -> Evaluation | None:
        """Returns the round that the node serves, None while it trains.

        rounds: those that run and whose policies the node serves, the longest-running first. takes_tasks: whether the
        node takes evaluation tasks now; it does not for a time after it could not load a version.
        """
        for evaluation in rounds:
            self._release_nodes(evaluation, without=None if takes_tasks else node.id)
        for evaluation in rounds:
            if node.id in evaluation.reserved_nodes or evaluation.flow.leases.held_by(node.id):
                evaluation.reserved_nodes.add(node.id)
                return evaluation
        suitable = [evaluation for evaluation in rounds if evaluation.has_tasks and _can_serve(node, evaluation)]
        if not takes_tasks or not suitable or not self._has_room(suitable[0]):
            return None
        suitable[0].reserved_nodes.add(node.id)
        return suitable[0]

    def is_training(self, node: NodeId) -> bool:
        """Returns whether the node holds training tasks."""
        return any(flow.leases.held_by(node) for flow in self._run.flows.values())

    def _release_nodes(self, evaluation: Evaluation, *, without: NodeId | None) -> None:
        """Ends the reservations of nodes that have nothing to do for the round, or no longer can."""
        live = {node.id: node for node in self._exclusive_nodes(evaluation)}
        evaluation.reserved_nodes = {
            node
            for node in evaluation.reserved_nodes & live.keys()
            if evaluation.flow.leases.held_by(node)
            or (evaluation.has_tasks and node != without and _can_serve(live[node], evaluation))
        }

    def _has_room(self, evaluation: Evaluation) -> bool:
        """Returns whether another node may be reserved. With several evaluations the largest share applies to all."""
        evaluations = self._run.evaluations.values()
        share = max(evaluation.flow.spec.evaluation_share or 0.0 for evaluation in evaluations)
        nodes = sum(1 for _ in self._exclusive_nodes(evaluation))
        limit = nodes if self._run.trains_nothing else max(1, floor(share * nodes))
        return sum(len(evaluation.reserved_nodes) for evaluation in evaluations) < limit

    def _exclusive_nodes(self, evaluation: Evaluation) -> Iterator[Node]:
        policies = evaluation.flow.served_policies
        return (
            node
            for node in self._run.registry.nodes()
            if node.state is NodeState.READY and node.facts.evaluation_mode.is_exclusive and node.facts.serves(policies)
        )


def _can_serve(node: Node, evaluation: Evaluation) -> bool:
    """Returns whether the node can serve the versions of a round: any, if its engine loads them."""
    return node.facts.evaluation_mode is EvaluationMode.RESERVED or all(
        node.versions.get(policy) == version for policy, version in evaluation.versions.items()
    )
