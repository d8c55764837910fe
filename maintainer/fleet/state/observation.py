"""Dataflow's latest report: its nodes, the rule's recommendations, and its age."""

import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.instances import Cause, LaunchId
from astraflow.contract.fleet.recommendations import FleetConstraints, Reason
from astraflow.contract.ids import NodeId, PoolId, node_name
from astraflow.contract.nodes import JoinToken
from astraflow.contract.records import render_cause
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

RECONNECT_S = 1.0

HEARTBEAT_S = 5.0
"""Age up to which a heartbeat, or the absence of one in a report, outranks what a provider lists. Seconds."""

SEEN_NODES_S = 3600.0
"""Time for which the latest report of a missing node is remembered. Seconds."""

_UNDECIDED_REASONS = frozenset({Reason.UNMEASURED, Reason.SWITCHED_OFF})
"""Reasons of recommendations that only repeat the current size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecommendation:
    """Recommended size of a pool."""

    target: int
    reason: str
    victims: tuple[str, ...] = ()
    """Names of nodes to retire first."""


RecommendationSource = Callable[[Report], Mapping[PoolId, TargetRecommendation]]
"""Derives recommendations from a report. Pools without a recommendation are left out."""


class DataflowControl(Protocol):
    """Interface of dataflow's control plane that the fleet service uses."""

    def watch_report(self) -> AsyncIterator[Report]:
        """Yields the latest report at once, then one a second."""

    async def report_fleet_constraints(self, constraints: FleetConstraints) -> None:
        """Reports the constraints that recommendations must respect."""

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        """Requests that a node finishes and leaves."""

    async def mint_join_token(
        self, role: str, *, pool: str = "", name: str = "", valid_s: float = 0.0, actor: str, reason: str
    ) -> JoinToken:
        """Returns a token with which one node of that pool and name can join, once."""

    async def revoke_credential(self, role: str, name: str, *, actor: str, reason: str) -> str:
        """Revokes the credential of that name. Raises: InvalidInput when there is none."""


class Observation:
    """The run as of the latest report. Nodes are identified by name, which is the launch id."""

    def __init__(self, recommendations: RecommendationSource, *, clock: Clock, fresh_s: float) -> None:
        """fresh_s: age from which a report is stale, in seconds."""
        self._recommendations_of = recommendations
        self._clock = clock
        self._fresh_s = fresh_s
        self._nodes: dict[str, NodeReport] = {}
        self._targets: Mapping[PoolId, TargetRecommendation] = {}
        self._is_complete = False
        self._seen_at: float | None = None
        self._fresh_since = 0.0
        """Clock time of the first report since reports were stale."""
        self._seen_nodes_at: dict[str, float] = {}
        """Clock time of the latest report that had each node; nodes missing for long are left out."""
        self._unbroken_since = 0.0
        """Clock time of the first report since reports came without an interruption and without a restart."""
        self._sequence: int | None = None
        """Sequence of the latest report; None after an interruption."""

    @property
    def age_s(self) -> float | None:
        """Age of the latest report. Seconds; None before the first."""
        return None if self._seen_at is None else self._clock.now() - self._seen_at

    @property
    def is_fresh(self) -> bool:
        """The latest report is recent enough to act on."""
        return self.age_s is not None and self.age_s <= self._fresh_s

    @property
    def is_current(self) -> bool:
        """Dataflow answers: the latest report is as recent as a heartbeat."""
        return self.age_s is not None and self.age_s <= HEARTBEAT_S

    @property
    def fresh_for_s(self) -> float:
        """Time for which reports have been fresh. Seconds."""
        return self._clock.now() - self._fresh_since if self.is_fresh else 0.0

    @property
    def unbroken_s(self) -> float:
        """Time for which reports have come without an interruption and without a restart of dataflow. Seconds."""
        return self._clock.now() - self._unbroken_since

    @property
    def is_run_complete(self) -> bool:
        """The run has reached its stop condition and needs no nodes any more."""
        return self._is_complete

    def present(self, pool: PoolId) -> tuple[str, ...]:
        """Returns names of the pool's joining and ready nodes, including manually started ones, like the rule."""
        staying = (NodeState.JOINING, NodeState.READY)
        return tuple(name for name, node in self._nodes.items() if node.facts.pool == pool and node.state in staying)

    def node(self, name: str) -> NodeReport | None:
        """Returns the node of that name; None when there is none, or it has left."""
        node = self._nodes.get(name)
        return node if node is not None and node.state is not NodeState.GONE else None

    def has_left(self, name: str, *, missing_for_s: float) -> bool:
        """Returns whether a node has left: dataflow reports that, or has not reported the node for `missing_for_s`.

        A restarted dataflow knows no nodes until they join again, so only reports after its restart count.
        """
        if name in self._nodes:
            return self._nodes[name].state is NodeState.GONE
        if self._seen_at is None:
            return False
        missing_since = max(self._unbroken_since, self._seen_nodes_at.get(name, self._unbroken_since))
        return self._seen_at - missing_since >= missing_for_s

    def heartbeat_age_s(self, name: str) -> float:
        """Returns the age of a node's latest heartbeat in seconds; infinity when it has left or was lost."""
        node = self.node(name)
        if node is None or node.state is NodeState.LOST or self.age_s is None:
            return math.inf
        return self.age_s + node.heartbeat_age_s

    def is_alive(self, name: str) -> bool:
        """Returns whether a current report has a fresh heartbeat of the node."""
        return self.heartbeat_age_s(name) <= HEARTBEAT_S

    def is_silent(self, name: str, *, for_s: float = HEARTBEAT_S) -> bool:
        """Returns whether current reports show that the node has left, or had no heartbeat for this time.

        False while dataflow does not answer: then the node may be alive.
        """
        if not self.is_current:
            return False
        node = self.node(name)
        return self.has_left(name, missing_for_s=for_s) if node is None else node.heartbeat_age_s > for_s

    def cause(self, name: str) -> Cause | None:
        """Returns why a node drains or has left; None when dataflow does not know."""
        node = self._nodes.get(name)
        return node.cause if node is not None else None

    def recommendation(self, pool: PoolId) -> TargetRecommendation | None:
        """Returns the rule's current recommendation; None while the report is stale."""
        return self._targets.get(pool) if self.is_fresh else None

    def speeds(self) -> dict[LaunchId, float]:
        """Returns episodes a second of each ready node, by launch."""
        return {
            LaunchId.unchecked(name): node.episodes_per_s
            for name, node in self._nodes.items()
            if node.state is NodeState.READY
        }

    def update(self, report: Report) -> None:
        """Stores a newer report. Of several nodes with one name, the latest to join counts."""
        newest: dict[str, NodeReport] = {}
        for node in report.nodes:
            previous_node = newest.get(node.facts.name)
            if previous_node is None or node.joined_at >= previous_node.joined_at:
                newest[node.facts.name] = node
        now = self._clock.now()
        if not self.is_fresh:
            self._fresh_since = now
        if self._sequence is None or report.sequence < self._sequence or not self.is_fresh:
            self._unbroken_since = now
        recent = {name: at for name, at in self._seen_nodes_at.items() if now - at < SEEN_NODES_S}
        self._seen_nodes_at = recent | dict.fromkeys(newest, now)
        self._sequence = report.sequence
        self._nodes = newest
        self._targets = self._recommendations_of(report)
        self._is_complete = report.completion is not None and report.completion.ends_run
        self._seen_at = now

    def interrupt(self) -> None:
        """Records that the stream of reports ended: dataflow may have restarted."""
        self._sequence = None

    async def watch(self, dataflow: DataflowControl, *, on_recommendations: Callable[[], None] = lambda: None) -> None:
        """Reads reports until cancelled, reconnecting as needed. on_recommendations: called after a change."""
        last_problem = ""
        while True:
            self.interrupt()
            try:
                async for report in dataflow.watch_report():
                    last_problem = ""
                    before = self._targets
                    self.update(report)
                    if self._targets != before:
                        on_recommendations()
            except AstraFlowError as problem:
                if str(problem) != last_problem:
                    log.warning("report_not_readable", problem=str(problem))
                last_problem = str(problem)
            await self._clock.sleep(RECONNECT_S)


def reported_recommendations(report: Report) -> Mapping[PoolId, TargetRecommendation]:
    """Returns the rule's recommendations in a report, without undecided ones."""
    return {
        recommendation.pool: TargetRecommendation(
            target=recommendation.target,
            reason=render_cause(recommendation.change),
            victims=tuple(node_name(victim) for victim in recommendation.victims),
        )
        for recommendation in report.recommendations
        if not _UNDECIDED_REASONS.intersection(recommendation.reasons[:1])
    }
