from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import UnknownVersion
from astraflow.contract.ids import Version
from astraflow.weights.store.records import RouteSegment, cheapest_route
from tests.errors import raises_code


def full(target: int, size_bytes: int = 1000) -> RouteSegment:
    return RouteSegment(target=Version(target), base=None, size_bytes=size_bytes)


def delta(base: int, target: int, size_bytes: int = 10) -> RouteSegment:
    return RouteSegment(target=Version(target), base=Version(base), size_bytes=size_bytes)


CHAIN = [full(0), *(delta(version, version + 1) for version in range(5)), full(5)]


def test_a_node_without_a_version_gets_the_full_snapshot() -> None:
    assert cheapest_route(CHAIN, have=None, want=Version(5)) == (full(5),)


def test_a_node_gets_the_delta_chain_while_it_is_smaller() -> None:
    assert cheapest_route(CHAIN, have=Version(2), want=Version(5)) == (delta(2, 3), delta(3, 4), delta(4, 5))


def test_a_node_gets_the_full_snapshot_when_the_chain_is_larger() -> None:
    segments = [*CHAIN, delta(5, 6, 900), full(6, 905)]

    assert cheapest_route(segments, have=Version(5), want=Version(6)) == (delta(5, 6, 900),)
    assert cheapest_route(segments, have=Version(4), want=Version(6)) == (full(6, 905),)


def test_a_direct_delta_is_used_where_it_is_smaller() -> None:
    direct = delta(2, 5, 15)

    assert cheapest_route([*CHAIN, direct], have=Version(2), want=Version(5)) == (direct,)


def test_of_equally_large_routes_the_shorter_is_used() -> None:
    direct = delta(3, 5, 20)

    assert cheapest_route([*CHAIN, direct], have=Version(3), want=Version(5)) == (direct,)


def test_versions_between_anchors_are_reached_by_deltas() -> None:
    assert cheapest_route(CHAIN, have=None, want=Version(2)) == (full(0), delta(0, 1), delta(1, 2))


def test_a_removed_base_version_is_ignored() -> None:
    assert cheapest_route(CHAIN, have=Version(99), want=Version(5)) == (full(5),)


def test_nothing_is_fetched_for_the_current_version() -> None:
    assert cheapest_route(CHAIN, have=Version(5), want=Version(5)) == ()


def test_a_version_without_a_route_is_unknown() -> None:
    with raises_code(UnknownVersion, "weights.version_not_stored", "version 7", "version 3"):
        cheapest_route(CHAIN, have=Version(3), want=Version(7))


@pytest.mark.long
@given(st.data())
def test_no_other_route_has_fewer_bytes(data: st.DataObject) -> None:
    segments = list(
        {
            (leg.base, leg.target): leg
            for leg in data.draw(
                st.lists(
                    st.builds(
                        lambda base, step, size: delta(base, base + step, size) if base >= 0 else full(step, size),
                        st.integers(-1, 5),
                        st.integers(1, 4),
                        st.integers(1, 50),
                    ),
                    max_size=14,
                )
            )
        }.values()
    )
    have, want = data.draw(st.none() | st.integers(0, 8).map(Version)), Version(data.draw(st.integers(0, 8)))

    def cheapest(at: Version | None) -> float:
        if at == want:
            return 0
        return min((leg.size_bytes + cheapest(leg.target) for leg in segments if leg.base == at), default=float("inf"))

    expected = min(cheapest(have), cheapest(None))
    try:
        way = cheapest_route(segments, have=have, want=want)
    except UnknownVersion:
        assert expected == float("inf")
    else:
        assert sum(leg.size_bytes for leg in way) == expected
        assert all(before.target == after.base for before, after in pairwise(way))
        assert not way or way[-1].target == want
