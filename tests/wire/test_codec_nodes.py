"""Nodes of successive reports: unchanged nodes are the same object, changed ones are new."""

import dataclasses

import pytest

from astraflow.contract.causes import Cause
from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports import NodeReport
from astraflow.contract.weight_reports import LinkReport
from astraflow.wire.codec_nodes import NodeReader, encode_node
from tests.errors import raises_code
from tests.fakes.synthetic_run import SyntheticRun


def nodes_of(second: int) -> tuple[NodeReport, ...]:
    return SyntheticRun(nodes=("a", "b")).report(second).nodes


def read(reader: NodeReader, nodes: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
    return tuple(reader.read([encode_node(node) for node in nodes]))


def test_unchanged_facts_and_links_are_not_decoded_again() -> None:
    reader, first = NodeReader(), nodes_of(100)
    later = tuple(dataclasses.replace(node, leased=node.leased + 1) for node in first)

    before, after = read(reader, first), read(reader, later)

    assert (before, after) == (first, later)
    for sent, other in zip(before, after, strict=True):
        assert other.facts is sent.facts
        assert other.links[0] is sent.links[0]


def test_changed_nodes_are_decoded_again() -> None:
    reader, first = NodeReader(), nodes_of(100)
    read(reader, first)
    moved = dataclasses.replace(first[0].facts, region="elsewhere")
    link = LinkReport(source="10.0.0.1:1", versions=7)
    changed = (dataclasses.replace(first[0], facts=moved, links=(link,)), first[1])

    assert read(reader, changed) == changed


def test_cached_values_of_departed_nodes_are_removed() -> None:
    reader, (first, second) = NodeReader(), nodes_of(100)
    (before, _) = read(reader, (first, second))
    read(reader, (second,))

    (after,) = read(reader, (first,))

    assert after == before
    assert after.facts is not before.facts


@pytest.mark.parametrize("cause", [None, *Cause])
def test_the_cause_of_a_departure_round_trips(cause: Cause | None) -> None:
    nodes = tuple(dataclasses.replace(node, cause=cause) for node in nodes_of(100))

    assert read(NodeReader(), nodes) == nodes


def test_an_unknown_cause_is_refused_with_the_node() -> None:
    message = encode_node(nodes_of(100)[0])
    message.cause = "bored"

    with raises_code(InvalidInput, "message.unknown_value", "node 'n0'", "'bored'"):
        list(NodeReader().read([message]))


def test_an_unknown_state_is_refused_with_the_node() -> None:
    message = encode_node(nodes_of(100)[0])
    message.state = "asleep"

    with raises_code(InvalidInput, "message.unknown_value", "node 'n0'", "'asleep'"):
        list(NodeReader().read([message]))


def test_counter_names_are_shared_between_nodes() -> None:
    one, other = read(NodeReader(), nodes_of(100))

    assert one.counters
    assert all(name is same for name, same in zip(one.counters, other.counters, strict=True))
