"""Codec of nodes in reports. A reader reuses the objects of the previous report that did not change."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from astraflow.contract.causes import Cause
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.reports import NodeReport, NodeState
from astraflow.contract.weight_reports import LinkReport
from astraflow.wire.codec_agent_calls import decode_session, encode_session
from astraflow.wire.codec_common import (
    decode_facts,
    decode_link,
    decode_versions,
    encode_facts,
    encode_link,
    sorted_map,
)
from astraflow.wire.pb import control_plane_pb2 as pb

T = TypeVar("T")


def encode_node(node: NodeReport) -> pb.NodeReport:
    """One node of a report -> message."""
    return pb.NodeReport(
        id=node.id,
        facts=encode_facts(node.facts),
        state=node.state.value,
        joined_at=node.joined_at,
        heartbeat_age_s=node.heartbeat_age_s,
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
        sessions=[encode_session(session) for session in node.sessions],
    )


class NodeReader:
    """Reads the nodes of successive reports.

    A node's facts never change and its link statistics change only with a version: both are reused from the previous
    report where the bytes are equal. Objects of nodes that are absent from the latest report are dropped.
    """

    def __init__(self) -> None:
        self._facts: dict[bytes, NodeFacts] = {}
        self._links: dict[bytes, LinkReport] = {}

    def read(self, messages: Iterable[pb.NodeReport]) -> Iterator[NodeReport]:
        """Yields all nodes of the next report. Raises: InvalidInput."""
        facts, self._facts = self._facts, {}
        links, self._links = self._links, {}
        for message in messages:
            yield NodeReport(
                id=NodeId.unchecked(message.id),
                facts=_reuse_or_decode(message.facts, decode_facts, facts, self._facts),
                state=_state(message.state, message.id),
                joined_at=message.joined_at,
                heartbeat_age_s=message.heartbeat_age_s,
                leased=message.leased,
                episodes_per_s=message.episodes_per_s,
                tokens_per_s=message.tokens_per_s,
                versions=decode_versions(message.versions),
                counters=sorted_map(message.counters),
                gauges=sorted_map(message.gauges),
                lease_expiries=message.lease_expiries,
                errors=tuple(message.errors),
                links=tuple([_reuse_or_decode(link, decode_link, links, self._links) for link in message.links]),
                cause=_cause(message.cause, message.id) if message.cause else None,
                sessions=tuple([decode_session(session) for session in message.sessions]),
            )


def _reuse_or_decode(message: Any, decode: Callable[[Any], T], previous: dict[bytes, T], current: dict[bytes, T]) -> T:
    """Returns the decoded message, from `current` or `previous` if present, and stores it in `current`."""
    content = message.SerializeToString()
    decoded = current.get(content)
    if decoded is None:
        decoded = previous.get(content) or decode(message)
        current[content] = decoded
    return decoded


_STATES = {state.value: state for state in NodeState}
_CAUSES = {cause.value: cause for cause in Cause}


def _state(name: str, node: str) -> NodeState:
    state = _STATES.get(name)
    if state is None:
        raise InvalidInput(
            f"cannot decode node {node!r}: unknown state {name!r}; install the same release on both sides",
            code="message.unknown_value",
        )
    return state


def _cause(name: str, node: str) -> Cause:
    cause = _CAUSES.get(name)
    if cause is None:
        raise InvalidInput(
            f"cannot decode node {node!r}: unknown cause {name!r}; install the same release on both sides",
            code="message.unknown_value",
        )
    return cause
