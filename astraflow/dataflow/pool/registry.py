"""Who joined, what they said last, and what they are told."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astraflow.contract.causes import Cause
from astraflow.contract.errors import UnknownNode
from astraflow.contract.ids import NodeId, PolicyId, Version, name_of
from astraflow.contract.nodes import Directive, NodeFacts, NodeStatus
from astraflow.contract.reports import NodeState
from astraflow.contract.values import Json

RATE_WINDOW_S = 10.0
"""Rates look back this far."""

REMEMBERED = 20
"""Nodes that ended are shown until this many newer ones did."""


@dataclass(slots=True)
class Node:
    """One incarnation of a node.

    joining ──first version──► ready ──drain asked──► draining ──leave──► gone
       └────────────┬────────────┴─────────────┬──────┘
                    └──────beats stop──────► lost (a later beat is answered with `join again`)
    """

    id: NodeId
    facts: NodeFacts
    joined_at: float
    """Unix seconds."""
    beat_at: float
    """Monotonic seconds."""
    holder: str = ""
    """Holder of the credential that it joined with (`Caller.holder`); empty for the run token."""
    status: NodeStatus | None = None
    versions: Mapping[PolicyId, Version] = field(default_factory=dict)
    """What it serves, as far as it told last."""
    drain_reason: str | None = None
    cause: Cause | None = None
    """What made it drain, as far as that is more than its own decision."""
    drain_until: float | None = None
    """Monotonic seconds by when it is to be gone; None for no limit."""
    lease_expiries: int = 0
    is_lost: bool = False
    is_gone: bool = False
    history: deque[tuple[float, float, float]] = field(default_factory=deque)
    """(monotonic seconds, episodes done, tokens generated), for rates."""

    @property
    def state(self) -> NodeState:
        """Where it is in its life."""
        if self.is_gone:
            return NodeState.GONE
        if self.is_lost:
            return NodeState.LOST
        if self.drain_reason is not None:
            return NodeState.DRAINING
        return NodeState.READY if self.versions else NodeState.JOINING

    @property
    def is_live(self) -> bool:
        """Whether it takes part."""
        return not (self.is_gone or self.is_lost)

    def rates(self) -> tuple[float, float]:
        """Episodes and tokens per second over the window."""
        if len(self.history) < 2 or self.state in (NodeState.LOST, NodeState.GONE):
            return 0.0, 0.0
        first, last = self.history[0], self.history[-1]
        span_s = max(last[0] - first[0], 1e-3)
        return (last[1] - first[1]) / span_s, (last[2] - first[2]) / span_s


class Registry:
    """All nodes of the run. A node that restarts under its name replaces its earlier incarnation."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, Node] = {}
        self._incarnations = 0

    def nodes(self) -> list[Node]:
        """All that are remembered, in the order they joined."""
        return list(self._nodes.values())

    def join(self, facts: NodeFacts, *, now: float, wall: float, holder: str = "") -> tuple[Node, list[Node]]:
        """Register; returns the node and the earlier incarnations that it replaces."""
        replaced = [node for node in self._live() if node.facts.name == facts.name]
        for node in replaced:
            if node.state is NodeState.JOINING:
                del self._nodes[node.id]  # it never took part
            node.is_gone = True
        self._incarnations += 1
        node = Node(
            id=NodeId(f"{facts.name}.{self._incarnations}"), facts=facts, joined_at=wall, beat_at=now, holder=holder
        )
        self._nodes[node.id] = node
        self._forget_old()
        return node, replaced

    def get(self, node_id: NodeId) -> Node:
        """A node that takes part. Raises: UnknownNode when it was lost, left or never joined."""
        node = self._nodes.get(node_id)
        if node is None or node.is_gone or node.is_lost:
            raise UnknownNode(f"node {node_id} takes no part in this run (any more): join again")
        return node

    def owner(self, node_id: NodeId) -> str:
        """Whose the leases of a node that takes part are: its credential's holder, or its name with the run token."""
        node = self._nodes.get(node_id)
        return node.holder if node is not None and node.holder else f"name {name_of(node_id)}"

    def other_holder(self, name: str, holder: str) -> Node | None:
        """The node of this name that takes part with another credential; None when there is none."""
        return next((node for node in self._live() if node.facts.name == name and node.holder != holder), None)

    def silent_s(self, name: str, *, now: float) -> float | None:
        """Seconds since the node of this name that takes part reported; None when there is none."""
        return min((now - node.beat_at for node in self._live() if node.facts.name == name), default=None)

    def beat(self, status: NodeStatus, *, now: float) -> Directive:
        """A node reports; returns what it is told. Raises: UnknownNode."""
        node = self.get(status.node)
        node.status = status
        node.versions = status.versions
        node.beat_at = now
        done, tokens = (status.counters.get(key, 0.0) for key in ("episodes_done", "tokens_generated"))
        node.history.append((now, done, tokens))
        while node.history[0][0] < now - RATE_WINDOW_S:
            node.history.popleft()
        if status.ending and node.drain_reason is None:
            node.drain_reason = status.ending
        if status.is_taken:
            node.cause = node.cause or Cause.TAKEN
        return _directive(node, now=now)

    def leave(self, node_id: NodeId, *, is_taken: bool = False) -> Node:
        """A node says goodbye. is_taken: its machine is taken away. Raises: UnknownNode."""
        node = self.get(node_id)
        node.is_gone = True
        if is_taken:
            node.cause = node.cause or Cause.TAKEN
        return node

    def drain(self, node_id: NodeId, reason: str, *, until: float | None) -> Node:
        """Have a node finish what runs and leave, by `until` if there is a limit. Raises: UnknownNode."""
        node = self.get(node_id)
        node.drain_reason = reason
        node.drain_until = until
        node.cause = node.cause or Cause.ORDERED
        return node

    def lose_silent(self, *, now: float, after_s: float) -> list[Node]:
        """Mark the nodes whose beats stopped; returns those."""
        silent = [node for node in self._live() if now - node.beat_at > after_s]
        for node in silent:
            node.is_lost = True
        return silent

    def state_dict(self) -> dict[str, Json]:
        """Ids are never reused, over restarts either."""
        return {"incarnations": self._incarnations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._incarnations = state["incarnations"]

    def _live(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.is_live]

    def _forget_old(self) -> None:
        ended = [node for node in self._nodes.values() if node.is_gone or node.is_lost]
        for node in ended[: max(0, len(ended) - REMEMBERED)]:
            del self._nodes[node.id]


_SHORTEST_S = 0.001
"""A deadline that has passed is still one: 0 would mean that there is none."""


def _directive(node: Node, *, now: float) -> Directive:
    if node.drain_reason is None:
        return Directive(action="go_on")
    left_s = max(_SHORTEST_S, node.drain_until - now) if node.drain_until is not None else 0.0
    return Directive(action="drain", reason=node.drain_reason, deadline_s=left_s)
