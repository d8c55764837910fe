"""Limits of requests: the server's refusals, and the client's own requests."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.agent_calls import MAX_LIVE_SESSIONS
from astraflow.wire import request_limits
from astraflow.wire.channel import MAX_MESSAGE_BYTES
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import control_plane_pb2 as control
from astraflow.wire.pb import data_plane_pb2 as data
from astraflow.wire.pb import enrollment_pb2, fleet_plane_pb2, weight_plane_pb2
from astraflow.wire.request_limits import MAX_NUMBER, check, check_size, clipped_to_limits, is_finite, max_request_bytes
from astraflow.wire.routes import ROUTES

numbers = st.floats()
texts = st.text(max_size=5) | st.text(min_size=1, max_size=2).map(lambda text: 9000 * text)
many = st.builds(
    lambda value, count: {f"figure-{index}": value for index in range(count)}, numbers, st.integers(60, 300)
)
figures = st.dictionaries(texts, numbers, max_size=4) | many
links = st.builds(common.LinkReport, source=st.just("h:1"), fetch_s=numbers, versions=st.integers(0, 2**64 - 1))
sessions = st.builds(
    common.LiveSession, task=texts, flow=texts, age_s=numbers, calls=st.integers(0, 2**64 - 1), idle_s=numbers
)
calls = st.builds(
    common.AgentCall, began_s=numbers, dialect=texts, model=texts, request=texts, reply=texts, outcome=texts
)
recorded_calls = st.builds(
    common.AgentCalls, calls=st.lists(calls, max_size=3) | st.just([common.AgentCall(model="m")] * 300)
)
beats = st.builds(
    data.HeartbeatRequest,
    running=st.lists(texts, max_size=3),
    counters=figures,
    gauges=figures,
    errors=st.lists(texts, max_size=3) | texts.map(lambda text: 12 * [text]),
    leave_reason=texts,
    links=st.lists(links, max_size=3) | st.just([common.LinkReport(source="h:1")] * 70),
    sessions=st.lists(sessions, max_size=3) | st.just([common.LiveSession(task="t")] * 70),
)
pushes = st.builds(
    data.PushRequest,
    tasks=st.lists(texts, max_size=3),
    durations_s=st.lists(numbers, max_size=3),
    trajectories=st.builds(
        common.Trajectories,
        rewards=st.lists(numbers, max_size=3),
        details=st.lists(
            st.builds(
                common.TrajectoryDetails,
                metrics=figures,
                prompt_text=texts,
                span_s=st.lists(numbers, max_size=3),
                speakers=st.lists(texts, max_size=3),
            ),
            max_size=3,
        ),
    ),
    details=st.lists(
        st.builds(data.EpisodeDetails, failure_message=texts, continued_tokens=st.integers(0, 2**64 - 1)), max_size=3
    ),
)
facts = st.builds(
    common.NodeFacts,
    region=texts,
    engine=texts,
    hardware=texts,
    capacity=st.integers(0, 2**32 - 1),
    price_per_hour=numbers,
)


@pytest.mark.long
@settings(deadline=None)
@given(message=st.one_of(beats, pushes, facts, recorded_calls))
def test_clipped_requests_are_accepted(message: data.HeartbeatRequest | data.PushRequest | common.NodeFacts) -> None:
    check(clipped_to_limits(message))
    assert is_finite(message)


@pytest.mark.long
@settings(deadline=None)
@given(message=st.one_of(beats, pushes, facts, recorded_calls))
def test_accepted_requests_are_finite_and_unchanged_by_clipping(
    message: data.HeartbeatRequest | data.PushRequest,
) -> None:
    try:
        check(message)
    except InvalidInput:
        return
    assert is_finite(message)
    before = message.SerializeToString(deterministic=True)
    assert clipped_to_limits(message).SerializeToString(deterministic=True) == before


def test_nan_gauges_are_removed_and_infinite_ones_bounded() -> None:
    gauges = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}
    assert dict(clipped_to_limits(data.HeartbeatRequest(gauges=gauges)).gauges) == {
        "b": MAX_NUMBER,
        "c": -MAX_NUMBER,
        "d": 0.5,
    }


@pytest.mark.parametrize("path", ROUTES)
def test_every_method_limits_its_requests(path: str) -> None:
    most = max_request_bytes(path)
    assert 0 < most <= MAX_MESSAGE_BYTES
    check_size(path, most)
    with pytest.raises(InvalidInput):
        check_size(path, most + 1)


def test_every_limit_is_that_of_a_field() -> None:
    files = (common, control, data, enrollment_pb2, fleet_plane_pb2, weight_plane_pb2)
    messages = [message for file in files for message in file.DESCRIPTOR.message_types_by_name.values()]
    fields = {f"{message.name}.{field.name}" for message in messages for field in message.fields}
    assert request_limits._LIMITS.keys() - fields == set()


@pytest.mark.parametrize("method", ["Heartbeat", "Join", "Lease", "Leave"])
def test_requests_of_nodes_have_small_limits(method: str) -> None:
    assert max_request_bytes(f"/astraflow.v1.NodeData/{method}") < 2**20


def test_the_largest_valid_heartbeat_is_accepted() -> None:
    running = [f"{'x' * 120}:{index:06}" for index in range(4096)]
    errors = ["e" * 2048] * 8
    count = 2**53
    session = common.LiveSession(
        task="x" * 128, flow="f" * 128, age_s=1e9, calls=count, waiting_calls=count, tokens=count, idle_s=1e9
    )
    heartbeat = data.HeartbeatRequest(
        node="n.1",
        running=running,
        errors=errors,
        links=[common.LinkReport(source="h:1")] * 64,
        sessions=[session] * MAX_LIVE_SESSIONS,
    )
    check(heartbeat)
    check_size("/astraflow.v1.NodeData/Heartbeat", heartbeat.ByteSize())


@pytest.mark.long
def test_all_numbers_of_a_large_report_are_checked() -> None:
    nodes = [control.NodeReport(id=f"n.{index}") for index in range(5000)]
    assert is_finite(control.Report(nodes=nodes))
    nodes[4000].facts.price_per_hour = math.nan
    assert not is_finite(control.Report(nodes=nodes))
