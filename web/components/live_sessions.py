"""Table of agents' sessions that run now."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.reports.report import NodeReport
from astraflow.contract.rollouts.agent_calls import LiveSession

IDLE_S = 120.0
"""Time without a call from which a session is marked: its program may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSessionsView:
    """Sessions of some nodes, the oldest first."""

    rows: Sequence[tuple[NodeReport, LiveSession]]
    total: int
    """Running sessions, of which the rows are the oldest. Count."""

    @property
    def hidden(self) -> int:
        """Sessions that the report leaves out. Count."""
        return self.total - len(self.rows)

    @property
    def idle(self) -> int:
        """Sessions among the rows whose program may hang. Count."""
        return sum(is_idle(session) for _, session in self.rows)


def live_sessions(nodes: Sequence[NodeReport]) -> LiveSessionsView:
    """Returns the sessions that the nodes report."""
    reported = sessions_of(nodes)
    counted = sum(int(node.gauges.get("agent_sessions", 0.0)) for node in nodes if node.sessions)
    return LiveSessionsView(rows=reported, total=max(counted, len(reported)))


def sessions_of(nodes: Sequence[NodeReport]) -> list[tuple[NodeReport, LiveSession]]:
    """Returns the reported sessions with their nodes, the oldest first."""
    sessions = [(node, session) for node in nodes for session in node.sessions]
    return sorted(sessions, key=lambda pair: -pair[1].age_s)


def runs_agents(node: NodeReport) -> bool:
    """Returns whether the node has a flow whose episodes are sessions of agents."""
    return "agent_sessions" in node.gauges


def is_idle(session: LiveSession) -> bool:
    """Returns whether no call is in progress, and none was for a long time."""
    return session.idle_s >= IDLE_S and not session.waiting_calls
