"""Nodes of successive reports: unchanged facts and links are the same objects, changed ones are new."""

import dataclasses

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.instances import Cause
from astraflow.contract.reports.report import NodeReport
from astraflow.contract.weight_reports import LinkReport
from astraflow.wire.codecs.converter import Memo, from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as pb
from tests.errors import raises_code
from tests.fakes.synthetic_run import SyntheticRun


def nodes_of(second: int) -> tuple[NodeReport, ...]:
    return SyntheticRun(nodes=("a", "b")).report(second).nodes


def read(memo: Memo, nodes: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
    memo.begin()
    return tuple(from_message(to_message(node, pb.NodeReport), NodeReport, memo=memo) for node in nodes)


def test_unchanged_facts_and_links_are_not_decoded_again() -> None:
    memo, first = Memo(), nodes_of(100)
    later = tuple(dataclasses.replace(node, leased=node.leased + 1) for node in first)

    before, after = read(memo, first), read(memo, later)

    assert (before, after) == (first, later)
    for sent, other in zip(before, after, strict=True):
        assert other.facts is sent.facts
        assert other.links[0] is sent.links[0]


def test_changed_nodes_are_decoded_again() -> None:
    memo, first = Memo(), nodes_of(100)
    read(memo, first)
    moved = dataclasses.replace(first[0].facts, region="elsewhere")
    link = LinkReport(source="10.0.0.1:1", versions=7)
    changed = (dataclasses.replace(first[0], facts=moved, links=(link,)), first[1])

    assert read(memo, changed) == changed


@pytest.mark.parametrize(
    "counters",
    [{"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 0.0}, {"b": 2.0, "c": 3.0}, {"b": 2.0}, {}],
)
def test_counters_with_other_names_than_those_of_the_previous_node_are_read(counters: dict[str, float]) -> None:
    first = dataclasses.replace(nodes_of(100)[0], counters={"a": 1.0, "b": 0.0})
    second = dataclasses.replace(first, counters=counters)

    decoded = read(Memo(), (first, second))

    assert decoded == (first, second)
    assert list(decoded[1].counters) == sorted(counters)


def test_cached_values_of_departed_nodes_are_removed() -> None:
    memo, (first, second) = Memo(), nodes_of(100)
    (before, _) = read(memo, (first, second))
    read(memo, (second,))

    (after,) = read(memo, (first,))

    assert after == before
    assert after.facts is not before.facts


@pytest.mark.parametrize("cause", [None, *Cause])
def test_the_cause_of_a_departure_round_trips(cause: Cause | None) -> None:
    nodes = tuple(dataclasses.replace(node, cause=cause) for node in nodes_of(100))

    assert read(Memo(), nodes) == nodes


@pytest.mark.parametrize("field", ["state", "cause"])
def test_an_unknown_value_of_an_enum_is_refused(field: str) -> None:
    message = to_message(nodes_of(100)[0], pb.NodeReport)
    setattr(message, field, "asleep")

    with raises_code(InvalidInput, "message.unknown_value", "'asleep'"):
        from_message(message, NodeReport)


def test_counter_names_are_shared_between_nodes() -> None:
    first, second = read(Memo(), nodes_of(100))

    assert first.counters
    assert all(name is same for name, same in zip(first.counters, second.counters, strict=True))
