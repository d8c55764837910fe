"""Table of agents' sessions that run now."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from astraflow.contract.reports.report import NodeReport
from astraflow.contract.rollouts.agent_calls import LiveSession
from web.components import formats

IDLE_S = 120.0
"""Time without a call from which a session is marked: its program may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSessionRow:
    """A session."""

    task: str
    flow: str
    node: str
    node_path: str
    age: str
    calls: str
    waiting: str
    tokens: str
    idle: str
    is_idle: bool
    """No call is in progress, and none was for a long time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSessionsView:
    """Sessions of some nodes, the oldest first."""

    rows: tuple[LiveSessionRow, ...]
    total: int
    """Running sessions, of which the rows are the oldest. Count."""

    @property
    def hidden(self) -> int:
        """Sessions that the report leaves out. Count."""
        return self.total - len(self.rows)

    @property
    def idle(self) -> int:
        """Sessions among the rows whose program may hang. Count."""
        return sum(row.is_idle for row in self.rows)


def live_sessions(nodes: Sequence[NodeReport]) -> LiveSessionsView:
    """Returns the sessions that the nodes report."""
    reported = sessions_of(nodes)
    counted = sum(int(node.gauges.get("agent_sessions", 0.0)) for node in nodes if node.sessions)
    return LiveSessionsView(
        rows=tuple(_row(node, session) for node, session in reported), total=max(counted, len(reported))
    )


def sessions_of(nodes: Sequence[NodeReport]) -> list[tuple[NodeReport, LiveSession]]:
    """Returns the reported sessions with their nodes, the oldest first."""
    sessions = [(node, session) for node in nodes for session in node.sessions]
    return sorted(sessions, key=lambda pair: -pair[1].age_s)


def runs_agents(node: NodeReport) -> bool:
    """Returns whether the node has a flow whose episodes are sessions of agents."""
    return "agent_sessions" in node.gauges


def _row(node: NodeReport, session: LiveSession) -> LiveSessionRow:
    return LiveSessionRow(
        task=session.task,
        flow=session.flow,
        node=node.facts.name,
        node_path=f"/nodes/{quote(node.id, safe='')}",
        age=formats.duration(max(0.0, session.age_s)),
        calls=formats.count(session.calls),
        waiting=formats.count(session.waiting_calls),
        tokens=formats.count(session.tokens),
        idle=formats.duration(max(0.0, session.idle_s)),
        is_idle=session.idle_s >= IDLE_S and not session.waiting_calls,
    )
