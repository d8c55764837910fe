"""Registry of nodes: facts, latest status and directives."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.errors import UnknownNode
from astraflow.contract.fleet.instances import Cause
from astraflow.contract.ids import NodeId, PolicyId, Version, node_name
from astraflow.contract.nodes import Directive, NodeFacts, NodeStatus
from astraflow.contract.reports.report import NodeState
from astraflow.contract.values import Json

RATE_WINDOW_S = 10.0
"""Period over which rates are computed. Seconds."""

MAX_ENDED_NODES = 20
"""Number of ended nodes that stay visible."""


@dataclass(slots=True)
class Node:
    """One incarnation of a node.

    joining ──first version──► ready ──drain requested──► draining ──leave──► gone
       └────────────┬────────────┴─────────────┬──────┘
                    └──heartbeats stop─────► lost (a later heartbeat is answered with `join again`)
    """

    id: NodeId
    facts: NodeFacts
    joined_at: float
    """Unix seconds."""
    last_heartbeat_at: float
    """Monotonic seconds."""
    holder: str = ""
    """Holder of the credential that the node joined with (`Caller.holder`); empty for the run token."""
    status: NodeStatus | None = None
    versions: Mapping[PolicyId, Version] = field(default_factory=dict)
    """Versions that the node serves, as of its latest report."""
    drain_reason: str | None = None
    cause: Cause | None = None
    """External cause of the drain or departure; None if it was the node's own decision."""
    drain_until: float | None = None
    """Deadline of the drain in monotonic seconds; None for no limit."""
    lease_calls: int = 0
    """Lease calls so far: of several that wait, only the newest gets tasks. Count."""
    lease_expiries: int = 0
    """Leases that expired, or whose task was reclaimed. Count."""
    kept: str = ""
    """Tasks that it held and for how long when its probation began, as text; empty without probation."""
    is_lost: bool = False
    is_gone: bool = False
    history: deque[tuple[float, float, float]] = field(default_factory=deque)
    """(monotonic seconds, episodes done, tokens generated), oldest first, for rates."""

    @property
    def state(self) -> NodeState:
        """State in the life cycle."""
        if self.is_gone:
            return NodeState.GONE
        if self.is_lost:
            return NodeState.LOST
        if self.drain_reason is not None:
            return NodeState.DRAINING
        return NodeState.READY if self.versions else NodeState.JOINING

    @property
    def is_live(self) -> bool:
        """True if the node is neither gone nor lost."""
        return not (self.is_gone or self.is_lost)

    def rates(self) -> tuple[float, float]:
        """Returns episodes and tokens per second over the window."""
        if len(self.history) < 2 or self.state in (NodeState.LOST, NodeState.GONE):
            return 0.0, 0.0
        first, last = self.history[0], self.history[-1]
        span_s = max(last[0] - first[0], 1e-3)
        return (last[1] - first[1]) / span_s, (last[2] - first[2]) / span_s


class NodeRegistry:
    """All nodes of a run. A node that restarts under its name replaces its earlier incarnation."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, Node] = {}
        self._newest: dict[str, Node] = {}
        """Newest incarnation by name, the only one that may be live: joins stay cheap with thousands of nodes."""
        self._ended = 0
        """Nodes in `_nodes` that have ended. Count."""
        self._incarnations = 0

    def nodes(self) -> list[Node]:
        """Returns all known nodes, in the order in which they joined."""
        return list(self._nodes.values())

    def join(self, facts: NodeFacts, *, now: float, wall: float, holder: str = "") -> tuple[Node, list[Node]]:
        """Registers a node; returns it and the earlier incarnations that it replaces."""
        earlier = self._live_node(facts.name)
        replaced = [earlier] if earlier is not None else []
        for node in replaced:
            if node.state is NodeState.JOINING:
                del self._nodes[node.id]  # it was never ready
            else:
                self._ended += 1
            node.is_gone = True
        self._incarnations += 1
        node = Node(
            id=NodeId(f"{facts.name}.{self._incarnations}"),
            facts=facts,
            joined_at=wall,
            last_heartbeat_at=now,
            holder=holder,
        )
        self._nodes[node.id] = self._newest[facts.name] = node
        self._drop_old_ended()
        return node, replaced

    def get(self, node_id: NodeId) -> Node:
        """Returns a live node. Raises: UnknownNode when it was lost, left or never joined."""
        node = self._nodes.get(node_id)
        if node is None or node.is_gone or node.is_lost:
            raise UnknownNode(
                f"cannot find node {node_id!r}: it was lost, left or never joined this run; join again",
                code="node.unknown",
            )
        return node

    def owner(self, node_id: NodeId) -> str:
        """Returns the owner of a live node's leases: its credential's holder, or its name with the run token."""
        node = self._nodes.get(node_id)
        return node.holder if node is not None and node.holder else f"name {node_name(node_id)}"

    def share_keys(self, node_id: NodeId) -> tuple[str, str, str]:
        """Returns the names under which a node's tasks are counted: the owner's, its join token's and its pool's."""
        node = self._nodes.get(node_id)
        token = node.holder.partition("/")[0] if node is not None else ""
        return self.owner(node_id), token, str(node.facts.pool) if node is not None else ""

    def node_of_other_holder(self, name: str, holder: str) -> Node | None:
        """Returns the live node of this name with another credential; None when there is none."""
        node = self._live_node(name)
        return node if node is not None and node.holder != holder else None

    def silent_s(self, name: str, *, now: float) -> float | None:
        """Returns the seconds since the last report of the live node of this name; None when there is none."""
        node = self._live_node(name)
        return now - node.last_heartbeat_at if node is not None else None

    def heartbeat(self, status: NodeStatus, *, now: float) -> Directive:
        """Stores a node's report; returns its directive. Raises: UnknownNode."""
        node = self.get(status.node)
        node.status = status
        node.versions = status.versions
        node.last_heartbeat_at = now
        done, tokens = (status.counters.get(key, 0.0) for key in ("episodes_done", "tokens_generated"))
        node.history.append((now, done, tokens))
        while node.history[0][0] < now - RATE_WINDOW_S:
            node.history.popleft()
        if status.leave_reason and node.drain_reason is None:
            node.drain_reason = status.leave_reason
        if status.is_preempted:
            node.cause = node.cause or Cause.PREEMPTED
        return _directive(node, now=now)

    def leave(self, node_id: NodeId, *, is_preempted: bool = False) -> Node:
        """Marks a node as gone. is_preempted: its machine was preempted. Raises: UnknownNode."""
        node = self.get(node_id)
        node.is_gone = True
        self._ended += 1
        if is_preempted:
            node.cause = node.cause or Cause.PREEMPTED
        return node

    def drain(self, node_id: NodeId, reason: str, *, until: float | None) -> Node:
        """Drains a node: it finishes its running tasks and leaves, by `until` if given. Raises: UnknownNode."""
        node = self.get(node_id)
        node.drain_reason = reason
        node.drain_until = until
        node.cause = node.cause or Cause.REQUESTED
        return node

    def mark_silent_lost(self, *, now: float, after_s: float) -> list[Node]:
        """Marks nodes without a heartbeat for `after_s` as lost; returns them."""
        silent = [node for node in self._live() if now - node.last_heartbeat_at > after_s]
        for node in silent:
            node.is_lost = True
        self._ended += len(silent)
        return silent

    def state_dict(self) -> dict[str, Json]:
        """Returns the number of incarnations, so that ids are not reused after a restart."""
        return {"incarnations": self._incarnations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state."""
        self._incarnations = state["incarnations"]

    def _live(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.is_live]

    def _live_node(self, name: str) -> Node | None:
        node = self._newest.get(name)
        return node if node is not None and node.is_live else None

    def _drop_old_ended(self) -> None:
        if self._ended <= MAX_ENDED_NODES:
            return
        ended = [node for node in self._nodes.values() if not node.is_live]
        for node in ended[:-MAX_ENDED_NODES]:
            del self._nodes[node.id]
            if self._newest[node.facts.name] is node:
                del self._newest[node.facts.name]
        self._ended = MAX_ENDED_NODES


_MIN_DEADLINE_S = 0.001
"""Deadline that is sent when the deadline has passed, because 0 means no deadline. Seconds."""


def _directive(node: Node, *, now: float) -> Directive:
    if node.drain_reason is None:
        return Directive(action="continue_running")
    remaining_s = max(_MIN_DEADLINE_S, node.drain_until - now) if node.drain_until is not None else 0.0
    return Directive(action="drain", reason=node.drain_reason, deadline_s=remaining_s)
