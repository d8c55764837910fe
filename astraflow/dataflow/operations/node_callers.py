"""Nodes behind calls: a caller acts only as the nodes that joined with its credential."""

from collections.abc import Collection

from astraflow.access.callers import Role, current_caller
from astraflow.contract.errors import Conflict, NotPermitted
from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.record_kinds import RecordKind
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run


def caller_node(run: Run, node_id: NodeId) -> Node:
    """Returns the node that a call names. Raises: UnknownNode; NotPermitted when it has another credential."""
    node, caller = run.registry.get(node_id), current_caller()
    if caller.role is Role.NODE and node.holder != caller.holder:
        run.events.add(RecordKind.NODE_REFUSED, node.id, source=node.facts.name, pool=caller.pool, identity="id")
        raise NotPermitted(
            f"cannot act as node {node_id!r}: it joined with another credential; join under a different name",
            code="node.other_credential",
        )
    return node


def check_name_holder(run: Run, facts: NodeFacts) -> str:
    """Returns the caller's holder if it may join under this name; the run token may use any. Raises: Conflict."""
    caller = current_caller()
    other = run.registry.node_of_other_holder(facts.name, caller.holder)
    if caller.role is Role.NODE and other is not None:
        run.events.add(RecordKind.NODE_REFUSED, other.id, source=facts.name, pool=facts.pool, identity="name")
        raise Conflict(
            f"cannot join as {facts.name!r}: a node of pool {other.facts.pool!r} has this name with another "
            "credential; choose another --name, or stop that node",
            code="node.name_taken",
        )
    return caller.holder


def nodes_of(run: Run, holders: Collection[str]) -> list[Node]:
    """Returns the live nodes that joined with the credentials of these holders (`Caller.holder`)."""
    return [node for node in run.registry.nodes() if node.holder in holders and node.is_live]
