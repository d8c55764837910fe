"""Nodes in a report, both ways; from one report to the next only what is new is built anew."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from astraflow.contract.causes import Cause
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId
from astraflow.contract.links import LinkReport
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.reports import NodeReport, NodeState
from astraflow.wire.codec_common import decode_facts, decode_link, decode_versions, encode_facts, encode_link, plain
from astraflow.wire.pb import control_plane_pb2 as pb

T = TypeVar("T")


def encode_node(node: NodeReport) -> pb.NodeReport:
    """One node of a report -> message."""
    return pb.NodeReport(
        id=node.id,
        facts=encode_facts(node.facts),
        state=node.state.value,
        joined_at=node.joined_at,
        beat_age_s=node.beat_age_s,
        leased=node.leased,
        episodes_per_s=node.episodes_per_s,
        tokens_per_s=node.tokens_per_s,
        versions={policy: int(version) for policy, version in node.versions.items()},
        counters=dict(node.counters),
        gauges=dict(node.gauges),
        lease_expiries=node.lease_expiries,
        errors=node.errors,
        links=[encode_link(link) for link in node.links],
        cause=node.cause.value if node.cause is not None else "",
    )


class NodeReader:
    """Reads the nodes of one report after the other.

    What a node is never changes, and what came over its links only with a version: both are taken over from the report
    before where the bytes are the same. Nothing is kept of nodes that are not in the latest report.
    """

    def __init__(self) -> None:
        self._facts: dict[bytes, NodeFacts] = {}
        self._links: dict[bytes, LinkReport] = {}

    def read(self, messages: Iterable[pb.NodeReport]) -> Iterator[NodeReport]:
        """All nodes of the next report. Raises: InvalidInput."""
        facts, self._facts = self._facts, {}
        links, self._links = self._links, {}
        for message in messages:
            yield NodeReport(
                id=NodeId.known(message.id),
                facts=_built(message.facts, decode_facts, facts, self._facts),
                state=_state(message.state, message.id),
                joined_at=message.joined_at,
                beat_age_s=message.beat_age_s,
                leased=message.leased,
                episodes_per_s=message.episodes_per_s,
                tokens_per_s=message.tokens_per_s,
                versions=decode_versions(message.versions),
                counters=plain(message.counters),
                gauges=plain(message.gauges),
                lease_expiries=message.lease_expiries,
                errors=tuple(message.errors),
                links=tuple([_built(link, decode_link, links, self._links) for link in message.links]),
                cause=_cause(message.cause, message.id) if message.cause else None,
            )


def _built(message: Any, build: Callable[[Any], T], before: dict[bytes, T], now: dict[bytes, T]) -> T:
    """What a message says: as it is in `now` or in `before` already, else built; kept in `now`."""
    content = message.SerializeToString()
    found = now.get(content)
    if found is None:
        found = before.get(content) or build(message)
        now[content] = found
    return found


_STATES = {state.value: state for state in NodeState}
_CAUSES = {cause.value: cause for cause in Cause}


def _state(name: str, node: str) -> NodeState:
    state = _STATES.get(name)
    if state is None:
        raise InvalidInput(f"node {node} is in the unknown state {name!r}")
    return state


def _cause(name: str, node: str) -> Cause:
    cause = _CAUSES.get(name)
    if cause is None:
        raise InvalidInput(f"node {node} goes for the unknown cause {name!r}")
    return cause
