"""Names and ended nodes in the registry."""

from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import NodeStatus
from astraflow.dataflow.pool.registry import MAX_ENDED_NODES, Node, NodeRegistry
from tests.dataflow.running import facts


def joined(registry: NodeRegistry, name: str, *, holder: str = "") -> Node:
    """Joins a node that is ready."""
    node, _ = registry.join(facts(name), now=0.0, wall=0.0, holder=holder)
    registry.heartbeat(NodeStatus(node=node.id, running=(), versions={}), now=1.0)
    return node


def test_a_name_belongs_to_the_live_node_and_is_free_when_that_has_left() -> None:
    registry = NodeRegistry()
    first = joined(registry, "a", holder="one")
    assert registry.node_of_other_holder("a", "two") is first
    assert registry.node_of_other_holder("a", "one") is None
    assert registry.silent_s("a", now=3.0) == 2.0
    registry.leave(first.id)
    assert registry.node_of_other_holder("a", "two") is None
    assert registry.silent_s("a", now=3.0) is None


def test_a_node_that_joins_again_replaces_only_its_live_incarnation() -> None:
    registry = NodeRegistry()
    first = joined(registry, "a")
    second, replaced = registry.join(facts("a"), now=0.0, wall=0.0)
    assert (replaced, first.is_gone, second.id) == ([first], True, NodeId("a.2"))
    assert registry.mark_silent_lost(now=100.0, after_s=10.0) == [second]
    assert registry.join(facts("a"), now=0.0, wall=0.0)[1] == []


def test_the_latest_ended_nodes_stay_visible_and_live_nodes_always() -> None:
    registry = NodeRegistry()
    live = joined(registry, "live")
    ended = [joined(registry, f"n{number}") for number in range(MAX_ENDED_NODES + 5)]
    for node in ended:
        registry.leave(node.id)
    for round_ in range(2):
        newest, _ = registry.join(facts(f"new{round_}"), now=0.0, wall=0.0)
        assert registry.nodes()[0] is live
        assert [node for node in registry.nodes() if not node.is_live] == ended[-MAX_ENDED_NODES:]
    again = joined(registry, "n0")
    assert again in registry.nodes()
    assert newest in registry.nodes()
