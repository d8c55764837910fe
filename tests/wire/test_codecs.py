"""Every codec: values survive a round trip, and arbitrary messages give a value or an AstraFlow error."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.batches import Batch, Row, StepFailure, StepReport, TrainerAttachment
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet.decisions import Decision, InjectedFault
from astraflow.contract.fleet.instances import Instance
from astraflow.contract.fleet.maintainer import (
    Maintainer,
    MaintainerControlState,
    MaintainerStatus,
    Proposal,
    TranscriptEntry,
)
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanRequest
from astraflow.contract.fleet.pools import FleetStatus, Pool, PoolSpec
from astraflow.contract.fleet.preflight import PreflightCheck, PreflightResult, ProviderFacts
from astraflow.contract.fleet.recommendations import FleetConstraints, PoolRecommendation, WhatIfAnswer, WhatIfQuestion
from astraflow.contract.ids import BatchId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.nodes import Directive, JoinResult, NodeFacts, NodeStatus
from astraflow.contract.plugins import PlannedPlugins, PluginChange, PluginKind
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.queries import (
    EventPage,
    EventQuery,
    GroupPage,
    GroupQuery,
    RewardHistogram,
    RewardQuery,
    SampledGroup,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import Event, NodeReport, Report, SampledTrajectory
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery
from astraflow.contract.rollouts.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.tasks import Lease, Prompt
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.contract.weight_reports import LinkReport
from astraflow.contract.weights import Chunk, Manifest, Part, SharedFile, Transfer, TransferPlan, VersionNotice
from astraflow.wire.codecs import common as codec_common
from astraflow.wire.codecs import data as codec_data
from astraflow.wire.codecs import partial_rollouts as codec_partial_rollouts
from astraflow.wire.codecs import weights as codec_weights
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import common_pb2, control_plane_pb2, data_plane_pb2, fleet_plane_pb2, weight_plane_pb2
from tests import make
from tests.errors import raises_code
from tests.wire.strategies import names, same, values_of

CODECS: dict[tuple[ModuleType, str], tuple[type, type[Message]]] = {
    (codec_data, "lease"): (Lease, data_plane_pb2.LeaseReply),
    (codec_partial_rollouts, "partial_rollout"): (PartialRollout, data_plane_pb2.PartialRollout),
    (codec_partial_rollouts, "recorded_generation"): (RecordedGeneration, data_plane_pb2.RecordedGeneration),
    (codec_data, "status"): (NodeStatus, data_plane_pb2.HeartbeatRequest),
    (codec_weights, "manifest"): (Manifest, weight_plane_pb2.Manifest),
    (codec_weights, "transfer"): (Transfer, weight_plane_pb2.Transfer),
    (codec_weights, "plan"): (TransferPlan, weight_plane_pb2.PlanReply),
    (codec_weights, "chunk"): (Chunk, weight_plane_pb2.Chunk),
}
"""Hand-written codecs of one value and one message; the tests below cover codecs of other shapes."""

PAIRS: tuple[tuple[type, type[Message]], ...] = (
    (StepReport, data_plane_pb2.ReportStepRequest),
    (StepFailure, data_plane_pb2.ReportFailureRequest),
    (Prompt, common_pb2.Prompt),
    (NodeFacts, common_pb2.NodeFacts),
    (Hop, common_pb2.Hop),
    (LinkReport, common_pb2.LinkReport),
    (JoinResult, data_plane_pb2.JoinReply),
    (Directive, data_plane_pb2.HeartbeatReply),
    (BatchingFacts, common_pb2.BatchingFacts),
    (Mixture, data_plane_pb2.Mixture),
    (TrainerAttachment, data_plane_pb2.AttachReply),
    (SharedFile, weight_plane_pb2.SharedFile),
    (Part, weight_plane_pb2.Part),
    (VersionNotice, weight_plane_pb2.VersionNotice),
    (EvaluationReport, control_plane_pb2.EvaluationReport),
    (PoolRecommendation, control_plane_pb2.PoolRecommendation),
    (WhatIfQuestion, control_plane_pb2.WhatIfRequest),
    (WhatIfAnswer, control_plane_pb2.WhatIfReply),
    (Report, control_plane_pb2.Report),
    (NodeReport, control_plane_pb2.NodeReport),
    (PluginChange, control_plane_pb2.ChangePluginsRequest),
    (PlannedPlugins, control_plane_pb2.PlannedPlugins),
    (PluginKind, control_plane_pb2.PluginKind),
    (Event, control_plane_pb2.Event),
    (SampledTrajectory, control_plane_pb2.SampledTrajectory),
    (SampledGroup, control_plane_pb2.SampledGroup),
    (TrajectoryQuery, control_plane_pb2.TrajectoriesRequest),
    (TrajectoryPage, control_plane_pb2.TrajectoriesReply),
    (GroupQuery, control_plane_pb2.GroupsRequest),
    (GroupPage, control_plane_pb2.GroupsReply),
    (SampleIndexQuery, control_plane_pb2.SampleIndexRequest),
    (SampleIndex, control_plane_pb2.SampleIndexReply),
    (RewardQuery, control_plane_pb2.RewardsRequest),
    (RewardHistogram, control_plane_pb2.RewardsReply),
    (EventQuery, control_plane_pb2.EventsRequest),
    (EventPage, control_plane_pb2.EventsReply),
    (TrainingStep, control_plane_pb2.TrainingStep),
    (TrainingStepQuery, control_plane_pb2.TrainingStepsRequest),
    (TrainingStepPage, control_plane_pb2.TrainingStepsReply),
    (FleetConstraints, control_plane_pb2.FleetConstraints),
    (Actor, fleet_plane_pb2.FleetActor),
    (PoolSpec, fleet_plane_pb2.FleetPoolSpec),
    (Pool, fleet_plane_pb2.FleetPool),
    (Instance, fleet_plane_pb2.FleetInstance),
    (FleetStatus, fleet_plane_pb2.FleetStatus),
    (PlanRequest, fleet_plane_pb2.PlanChangeRequest),
    (Plan, fleet_plane_pb2.FleetPlan),
    (AppliedPlan, fleet_plane_pb2.AppliedPlan),
    (InjectedFault, fleet_plane_pb2.InjectedFault),
    (Decision, fleet_plane_pb2.FleetDecision),
    (PreflightCheck, fleet_plane_pb2.FleetPreflightCheck),
    (PreflightResult, fleet_plane_pb2.FleetPreflightResult),
    (ProviderFacts, fleet_plane_pb2.FleetProvider),
    (MaintainerStatus, fleet_plane_pb2.FleetMaintainerStatus),
    (MaintainerControlState, fleet_plane_pb2.MaintainerControlState),
    (Maintainer, fleet_plane_pb2.FleetMaintainer),
    (Proposal, fleet_plane_pb2.FleetProposal),
    (TranscriptEntry, fleet_plane_pb2.FleetTranscriptEntry),
)
"""Dataclasses and messages that the generic converter converts."""

OTHERS = {
    (codec_common, "ending"),
    (codec_common, "json"),
    (codec_common, "spans"),
    (codec_common, "versions"),
    (codec_data, "push"),
    (codec_data, "batch"),
    (codec_data, "step"),
}

every_codec = pytest.mark.parametrize(
    ("codec", "name"), CODECS, ids=[f"{codec.__name__.rpartition('.')[2]}.{name}" for codec, name in CODECS]
)
every_pair = pytest.mark.parametrize(("kind", "message_type"), PAIRS, ids=lambda part: part.__name__)


def test_every_converted_pair_is_tested() -> None:
    sources = [path.read_text() for folder in ("astraflow", "maintainer") for path in Path(folder).rglob("*.py")]
    messages = {
        name for text in sources for name in re.findall(r"to_message\([^()]*(?:\([^()]*\))*[^()]*?\w+\.(\w+)\)", text)
    }
    assert messages
    assert messages - {message.DESCRIPTOR.name for _, message in (*PAIRS, *CODECS.values())} == set()


def test_every_codec_is_tested() -> None:
    codec_names = {
        (module, name.partition("_")[2])
        for module in (
            codec_common,
            codec_data,
            codec_partial_rollouts,
            codec_weights,
        )
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith(("encode_", "decode_")) and function.__module__ == module.__name__
    }
    assert codec_names == {*CODECS, *OTHERS}


@every_codec
@settings(max_examples=30)
@given(data=st.data())
def test_values_round_trip_through_messages(codec: ModuleType, name: str, data: st.DataObject) -> None:
    value_type, message_type = CODECS[codec, name]
    value = data.draw(values_of(value_type))
    message = travelled(getattr(codec, f"encode_{name}")(value))
    assert type(message) is message_type
    assert same(getattr(codec, f"decode_{name}")(message), value)


@every_codec
@settings(max_examples=30)
@given(data=st.data())
def test_any_message_is_decoded_or_refused(codec: ModuleType, name: str, data: st.DataObject) -> None:
    message = data.draw(messages(CODECS[codec, name][1]))
    assert decoded_or_refused(lambda: getattr(codec, f"decode_{name}")(message))


@every_pair
@settings(max_examples=30)
@given(data=st.data())
def test_dataclasses_round_trip_through_messages(kind: type, message_type: type[Message], data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    assert same(from_message(travelled(to_message(value, message_type)), kind), value)


@every_pair
@settings(max_examples=30)
@given(data=st.data())
def test_any_message_is_converted_or_refused(kind: type, message_type: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(message_type))
    assert decoded_or_refused(lambda: from_message(message, kind))


@pytest.mark.long
@settings(max_examples=50)
@given(message=st.deferred(lambda: messages(data_plane_pb2.PushRequest)))
def test_any_push_is_decoded_or_refused(message: data_plane_pb2.PushRequest) -> None:
    assert decoded_or_refused(lambda: codec_data.decode_push(message.SerializeToString()))


@settings(max_examples=50)
@given(pieces=st.lists(st.deferred(lambda: messages(data_plane_pb2.BatchPiece)), max_size=3))
def test_any_batch_pieces_are_decoded_or_refused(pieces: list[data_plane_pb2.BatchPiece]) -> None:
    assert decoded_or_refused(lambda: codec_data.decode_batch([piece.SerializeToString() for piece in pieces]))


@pytest.mark.long
@settings(max_examples=50)
@given(episodes=st.lists(values_of(Episode), max_size=4), node=names)
def test_pushed_episodes_round_trip_with_their_node(episodes: list[Episode], node: str) -> None:
    pushed = [replace(episode, node=NodeId(node)) for episode in episodes]
    sender, decoded = codec_data.decode_push(codec_data.encode_push(NodeId(node), pushed))
    assert sender == node
    assert len(decoded) == len(pushed)
    for left, right in zip(decoded, pushed, strict=True):
        assert same(replace(left, trajectories=tuple(left.trajectories)), right)


@pytest.mark.long
@settings(max_examples=50)
@given(batch=values_of(Batch))
def test_a_batch_round_trips_through_pieces(batch: Batch) -> None:
    decoded = codec_data.decode_batch(codec_data.encode_batch(batch))
    assert decoded is not None
    sent = [replace(row, trajectory=replace(row.trajectory, calls=())) for row in batch.rows]
    assert same(replace(decoded, rows=tuple(decoded.rows)), replace(batch, rows=tuple(sent)))


def test_the_rows_of_a_batch_keep_their_order_when_groups_are_mixed() -> None:
    rows = [
        Row(group=GroupId(group), task=TaskId(f"{group}/0"), node=NodeId("n"), trajectory=make.trajectory())
        for group in ("a", "b", "a", "a", "c")
    ]
    batch = Batch(id=BatchId("1"), policy=PolicyId("p"), version=Version(0), is_redelivered=False, rows=tuple(rows))

    decoded = codec_data.decode_batch(codec_data.encode_batch(batch))

    assert decoded is not None
    assert [row.group for row in decoded.rows] == ["a", "b", "a", "a", "c"]
    assert [row.task for row in decoded.rows] == [row.task for row in rows]


def travelled(message: Message) -> Any:
    """Returns the message after serialization and parsing."""
    return type(message).FromString(message.SerializeToString())


def decoded_or_refused(decode: Callable[[], Any]) -> bool:
    """Returns whether the function decodes, or refuses with a code and a text; any other error is raised."""
    try:
        decode()
    except AstraFlowError as problem:
        return bool(problem.code and str(problem))
    return True


def messages(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Generates any message of a type, as an untrusted peer may send it."""
    if kind not in _MESSAGES:
        fields = {field.name: _values(field) for field in kind.DESCRIPTOR.fields}
        _MESSAGES[kind] = st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))
    return _MESSAGES[kind]


_MESSAGES: dict[type[Message], st.SearchStrategy[Any]] = {}
"""Strategies by type: a new one for each example would be analysed each time."""

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


@pytest.mark.parametrize(("trajectories", "spans"), [(2**16 + 1, 0), (1, 2**20 + 1)])
def test_a_push_of_too_many_trajectories_or_spans_is_refused_before_they_are_built(
    trajectories: int, spans: int
) -> None:
    """A message of 64 MiB has room for four million trajectories."""
    columns = common_pb2.Trajectories(rewards=[0.0] * trajectories, span_lengths=[1] * spans)
    raw = data_plane_pb2.PushRequest(node="node.1", trajectories=columns).SerializeToString()
    with raises_code(InvalidInput, "push.too_many"):
        codec_data.decode_push(raw, is_checked=True)
