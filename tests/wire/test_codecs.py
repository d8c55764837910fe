"""Every codec: values survive a round trip, and arbitrary messages give a value or an AstraFlow error."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.batches import Batch, StepReport, TrainerAttachment
from astraflow.contract.errors import AstraFlowError, PlanRefused
from astraflow.contract.evaluations import EvaluationReport
from astraflow.contract.fleet import (
    Actor,
    AppliedPlan,
    Decision,
    FleetStatus,
    InjectedFault,
    Instance,
    Plan,
    PlanRequest,
    Pool,
    PoolSpec,
)
from astraflow.contract.ids import NodeId
from astraflow.contract.maintainer import (
    Maintainer,
    MaintainerControlState,
    MaintainerStatus,
    Proposal,
    TranscriptEntry,
)
from astraflow.contract.nodes import Directive, JoinResult, NodeFacts, NodeStatus
from astraflow.contract.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.plugins import PlannedPlugins, PluginChange
from astraflow.contract.preflight import PreflightCheck, PreflightResult, ProviderFacts
from astraflow.contract.queries import (
    EventQuery,
    GroupQuery,
    RewardHistogram,
    RewardQuery,
    SampledGroup,
    TrajectoryQuery,
)
from astraflow.contract.recommendations import FleetConstraints, PoolRecommendation, WhatIfAnswer, WhatIfQuestion
from astraflow.contract.reports import Event, NodeReport, Report, SampledTrajectory
from astraflow.contract.tasks import Lease, Prompt
from astraflow.contract.trajectories import Episode
from astraflow.contract.weight_reports import LinkReport
from astraflow.contract.weights import Chunk, Manifest, Part, SharedFile, Transfer, TransferPlan, VersionNotice
from astraflow.wire import (
    codec_common,
    codec_control,
    codec_data,
    codec_evaluations,
    codec_fleet,
    codec_maintainer,
    codec_nodes,
    codec_partial_rollouts,
    codec_preflight,
    codec_queries,
    codec_recommendations,
    codec_weights,
)
from astraflow.wire.pb import common_pb2, control_plane_pb2, data_plane_pb2, fleet_plane_pb2, weight_plane_pb2
from tests.wire.strategies import names, same, values_of

CODECS: dict[tuple[ModuleType, str], tuple[type, type[Message]]] = {
    (codec_data, "prompt"): (Prompt, common_pb2.Prompt),
    (codec_common, "facts"): (NodeFacts, common_pb2.NodeFacts),
    (codec_common, "link"): (LinkReport, common_pb2.LinkReport),
    (codec_data, "join_result"): (JoinResult, data_plane_pb2.JoinReply),
    (codec_data, "lease"): (Lease, data_plane_pb2.LeaseReply),
    (codec_partial_rollouts, "partial_rollout"): (PartialRollout, data_plane_pb2.PartialRollout),
    (codec_partial_rollouts, "recorded_generation"): (RecordedGeneration, data_plane_pb2.RecordedGeneration),
    (codec_data, "status"): (NodeStatus, data_plane_pb2.HeartbeatRequest),
    (codec_data, "directive"): (Directive, data_plane_pb2.HeartbeatReply),
    (codec_data, "trainer_attachment"): (TrainerAttachment, data_plane_pb2.AttachReply),
    (codec_data, "step"): (StepReport, data_plane_pb2.ReportStepRequest),
    (codec_weights, "manifest"): (Manifest, weight_plane_pb2.Manifest),
    (codec_weights, "transfer"): (Transfer, weight_plane_pb2.Transfer),
    (codec_weights, "shared"): (SharedFile, weight_plane_pb2.SharedFile),
    (codec_weights, "plan"): (TransferPlan, weight_plane_pb2.PlanReply),
    (codec_weights, "part"): (Part, weight_plane_pb2.Part),
    (codec_weights, "chunk"): (Chunk, weight_plane_pb2.Chunk),
    (codec_weights, "notice"): (VersionNotice, weight_plane_pb2.VersionNotice),
    (codec_evaluations, "evaluation"): (EvaluationReport, control_plane_pb2.EvaluationReport),
    (codec_recommendations, "recommendation"): (PoolRecommendation, control_plane_pb2.PoolRecommendation),
    (codec_recommendations, "question"): (WhatIfQuestion, control_plane_pb2.WhatIfRequest),
    (codec_recommendations, "answer"): (WhatIfAnswer, control_plane_pb2.WhatIfReply),
    (codec_control, "report"): (Report, control_plane_pb2.Report),
    (codec_nodes, "node"): (NodeReport, control_plane_pb2.NodeReport),
    (codec_control, "change"): (PluginChange, control_plane_pb2.ChangePluginsRequest),
    (codec_control, "planned"): (PlannedPlugins, control_plane_pb2.PlannedPlugins),
    (codec_control, "event"): (Event, control_plane_pb2.Event),
    (codec_queries, "sample"): (SampledTrajectory, control_plane_pb2.SampledTrajectory),
    (codec_queries, "sampled_group"): (SampledGroup, control_plane_pb2.SampledGroup),
    (codec_queries, "trajectory_query"): (TrajectoryQuery, control_plane_pb2.TrajectoriesRequest),
    (codec_queries, "group_query"): (GroupQuery, control_plane_pb2.GroupsRequest),
    (codec_queries, "reward_query"): (RewardQuery, control_plane_pb2.RewardsRequest),
    (codec_queries, "histogram"): (RewardHistogram, control_plane_pb2.RewardsReply),
    (codec_queries, "event_query"): (EventQuery, control_plane_pb2.EventsRequest),
    (codec_recommendations, "fleet_constraints"): (FleetConstraints, control_plane_pb2.FleetConstraints),
    (codec_fleet, "actor"): (Actor, fleet_plane_pb2.FleetActor),
    (codec_fleet, "spec"): (PoolSpec, fleet_plane_pb2.FleetPoolSpec),
    (codec_fleet, "pool"): (Pool, fleet_plane_pb2.FleetPool),
    (codec_fleet, "instance"): (Instance, fleet_plane_pb2.FleetInstance),
    (codec_fleet, "status"): (FleetStatus, fleet_plane_pb2.FleetStatus),
    (codec_fleet, "request"): (PlanRequest, fleet_plane_pb2.PlanChangeRequest),
    (codec_fleet, "plan"): (Plan, fleet_plane_pb2.FleetPlan),
    (codec_fleet, "applied"): (AppliedPlan, fleet_plane_pb2.AppliedPlan),
    (codec_fleet, "injected_fault"): (InjectedFault, fleet_plane_pb2.InjectedFault),
    (codec_fleet, "decision"): (Decision, fleet_plane_pb2.FleetDecision),
    (codec_preflight, "preflight_check"): (PreflightCheck, fleet_plane_pb2.FleetPreflightCheck),
    (codec_preflight, "preflight_result"): (PreflightResult, fleet_plane_pb2.FleetPreflightResult),
    (codec_preflight, "provider"): (ProviderFacts, fleet_plane_pb2.FleetProvider),
    (codec_maintainer, "maintainer_status"): (MaintainerStatus, fleet_plane_pb2.FleetMaintainerStatus),
    (codec_maintainer, "control_state"): (MaintainerControlState, fleet_plane_pb2.MaintainerControlState),
    (codec_maintainer, "maintainer"): (Maintainer, fleet_plane_pb2.FleetMaintainer),
    (codec_maintainer, "proposal"): (Proposal, fleet_plane_pb2.FleetProposal),
    (codec_maintainer, "entry"): (TranscriptEntry, fleet_plane_pb2.FleetTranscriptEntry),
}
"""Codecs of one value and one message; the tests below cover codecs of other shapes."""

OTHERS = {
    (codec_common, "ending"),
    (codec_common, "json"),
    (codec_common, "spans"),
    (codec_common, "versions"),
    (codec_data, "push"),
    (codec_data, "batch"),
    (codec_fleet, "refused"),
}

every_codec = pytest.mark.parametrize(
    ("codec", "name"), CODECS, ids=[f"{codec.__name__.rpartition('.')[2]}.{name}" for codec, name in CODECS]
)


def test_every_codec_is_tested() -> None:
    found = {
        (module, name.partition("_")[2])
        for module in (
            codec_recommendations,
            codec_common,
            codec_control,
            codec_data,
            codec_evaluations,
            codec_fleet,
            codec_maintainer,
            codec_queries,
            codec_nodes,
            codec_partial_rollouts,
            codec_preflight,
            codec_weights,
        )
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith(("encode_", "decode_")) and function.__module__ == module.__name__
    }
    assert found == {*CODECS, *OTHERS}


def decoder(codec: ModuleType, name: str) -> Callable[[Any], Any]:
    """Returns the function that reads one message of a codec; nodes are read by the report."""
    if codec is codec_nodes:
        return lambda message: next(codec_nodes.NodeReader().read([message]))
    return cast("Callable[[Any], Any]", getattr(codec, f"decode_{name}"))


@every_codec
@settings(max_examples=30)
@given(data=st.data())
def test_values_round_trip_through_messages(codec: ModuleType, name: str, data: st.DataObject) -> None:
    value_type, message_type = CODECS[codec, name]
    value = data.draw(values_of(value_type))
    message = travelled(getattr(codec, f"encode_{name}")(value))
    assert type(message) is message_type
    assert same(decoder(codec, name)(message), value)


@every_codec
@settings(max_examples=30)
@given(data=st.data())
def test_any_message_is_decoded_or_refused(codec: ModuleType, name: str, data: st.DataObject) -> None:
    message = data.draw(messages(CODECS[codec, name][1]))
    decoded_or_refused(lambda: decoder(codec, name)(message))


@settings(max_examples=50)
@given(message=st.deferred(lambda: messages(data_plane_pb2.PushRequest)))
def test_any_push_is_decoded_or_refused(message: data_plane_pb2.PushRequest) -> None:
    decoded_or_refused(lambda: codec_data.decode_push(message.SerializeToString()))


@settings(max_examples=50)
@given(pieces=st.lists(st.deferred(lambda: messages(data_plane_pb2.BatchPiece)), max_size=3))
def test_any_batch_pieces_are_decoded_or_refused(pieces: list[data_plane_pb2.BatchPiece]) -> None:
    decoded_or_refused(lambda: codec_data.decode_batch([piece.SerializeToString() for piece in pieces]))


@settings(max_examples=50)
@given(episodes=st.lists(values_of(Episode), max_size=4), node=names)
def test_pushed_episodes_round_trip_with_their_node(episodes: list[Episode], node: str) -> None:
    pushed = [replace(episode, node=NodeId(node)) for episode in episodes]
    sender, found = codec_data.decode_push(codec_data.encode_push(NodeId(node), pushed))
    assert sender == node
    assert len(found) == len(pushed)
    assert all(same(one, other) for one, other in zip(found, pushed, strict=True))


@settings(max_examples=50)
@given(batch=values_of(Batch))
def test_a_batch_round_trips_through_pieces(batch: Batch) -> None:
    assert same(codec_data.decode_batch(codec_data.encode_batch(batch)), batch)


def test_a_refusal_is_raised_with_the_inputs_of_the_guard() -> None:
    message = travelled(codec_fleet.encode_refused("p-1", PlanRefused("not now", guard_json='{"a":1}')))
    with pytest.raises(PlanRefused, match="not now") as refused:
        codec_fleet.decode_applied(message)
    assert refused.value.guard_json == '{"a":1}'


def travelled(message: Message) -> Any:
    """Returns the message after serialization and parsing."""
    return type(message).FromString(message.SerializeToString())


def decoded_or_refused(decode: Callable[[], Any]) -> None:
    try:
        decode()
    except AstraFlowError as problem:
        assert str(problem)


@cache
def messages(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Generates any message of a type, as an untrusted peer may send it."""
    return st.fixed_dictionaries({}, optional={field.name: _values(field) for field in kind.DESCRIPTOR.fields}).map(
        lambda fields: kind(**fields)
    )


Field = Any
"""protobuf has two descriptor types, for its two implementations."""

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}


def _values(field: Field) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        parts = field.message_type.fields_by_name
        return st.dictionaries(_single(parts["key"]), _single(parts["value"]), max_size=2)
    return st.lists(_single(field), max_size=2) if field.is_repeated else _single(field)


def _single(field: Field) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(GetMessageClass(field.message_type))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=8) | st.binary(min_size=32, max_size=32)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.sampled_from(["", "a", "{}", "{", "full", "delta", "BF16", "ready", "engine"]) | st.text(max_size=8)
    return _SCALARS[field.cpp_type]
