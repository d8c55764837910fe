"""What is asked about sampled trajectories, groups and events, and what is answered, both ways."""

from astraflow.contract.errors import InvalidInput
from astraflow.contract.failures import Boundary, Failure
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId
from astraflow.contract.lookups import (
    EventQuery,
    GroupQuery,
    RewardBin,
    RewardQuery,
    RewardSpread,
    SampledGroup,
    TrajectoryQuery,
)
from astraflow.contract.reports import SampledTrajectory
from astraflow.wire.codec_common import decode_spans, encode_spans, given, plain, taken
from astraflow.wire.pb import control_plane_pb2 as pb

_SAMPLE_FIELDS = (
    "ordinal",
    "at",
    "fate",
    "reward",
    "prompt_text",
    "completion_text",
    "reference_text",
    "tokens",
    "model_tokens",
    "is_truncated",
    "member",
    "attempt",
    "duration_s",
)
_TRAJECTORY_WORDS = ("policy", "flow", "group", "task", "node", "fate", "text", "limit")
_TRAJECTORY_OPTIONS = (
    "step",
    "first_step",
    "last_step",
    "min_reward",
    "max_reward",
    "is_truncated",
    "is_failed",
    "before",
    "after",
)
_GROUP_WORDS = ("policy", "flow", "fate", "limit")
_GROUP_OPTIONS = ("step", "first_step", "last_step", "before")
_GROUP_FIELDS = ("ordinal", "at", "fate", "trajectories", "failed", "truncated")
_GROUP_FIGURES = ("step", "reward_mean", "reward_min", "reward_max")
_BIN_FIELDS = ("begin", "end", "lowest", "highest", "trajectories", "groups")
_EVENT_WORDS = ("subject", "text", "limit")


def encode_sample(sample: SampledTrajectory) -> pb.SampledTrajectory:
    """Sampled trajectory -> message."""
    return pb.SampledTrajectory(
        group=sample.group,
        task=sample.task,
        flow=sample.flow,
        policy=sample.policy,
        node=sample.node,
        step=sample.step,
        spans=encode_spans(sample.spans),
        metrics=dict(sample.metrics),
        text_ends=sample.text_ends,
        span_s=sample.span_s,
        failure_boundary=sample.failure.boundary.value if sample.failure else "",
        failure_message=sample.failure.message if sample.failure else "",
        **taken(sample, _SAMPLE_FIELDS),
    )


def decode_sample(message: pb.SampledTrajectory) -> SampledTrajectory:
    """Message -> sampled trajectory."""
    return SampledTrajectory(
        group=GroupId(message.group),
        task=TaskId(message.task),
        flow=FlowId(message.flow),
        policy=PolicyId(message.policy),
        node=NodeId(message.node),
        spans=decode_spans(message.spans),
        metrics=plain(message.metrics),
        text_ends=tuple(message.text_ends),
        span_s=tuple(message.span_s),
        failure=_decode_failure(message),
        **given(message, ("step",)),
        **taken(message, _SAMPLE_FIELDS),
    )


def encode_trajectory_query(query: TrajectoryQuery) -> pb.TrajectoriesRequest:
    """Query -> message."""
    return pb.TrajectoriesRequest(**taken(query, _TRAJECTORY_WORDS), **taken(query, _TRAJECTORY_OPTIONS))


def decode_trajectory_query(message: pb.TrajectoriesRequest) -> TrajectoryQuery:
    """Message -> query."""
    return TrajectoryQuery(**taken(message, _TRAJECTORY_WORDS), **given(message, _TRAJECTORY_OPTIONS))


def encode_reward_query(query: RewardQuery) -> pb.RewardsRequest:
    """Query -> message."""
    return pb.RewardsRequest(matching=encode_trajectory_query(query.matching), at_most=query.at_most)


def decode_reward_query(message: pb.RewardsRequest) -> RewardQuery:
    """Message -> query."""
    return RewardQuery(matching=decode_trajectory_query(message.matching), at_most=message.at_most)


def encode_spread(spread: RewardSpread) -> pb.RewardsReply:
    """Spread -> message."""
    return pb.RewardsReply(bins=[pb.RewardBin(**taken(one, _BIN_FIELDS)) for one in spread.bins], failed=spread.failed)


def decode_spread(message: pb.RewardsReply) -> RewardSpread:
    """Message -> spread."""
    bins = tuple(RewardBin(**taken(one, _BIN_FIELDS)) for one in message.bins)
    return RewardSpread(bins=bins, failed=message.failed)


def encode_group_query(query: GroupQuery) -> pb.GroupsRequest:
    """Query -> message."""
    return pb.GroupsRequest(**taken(query, _GROUP_WORDS), **taken(query, _GROUP_OPTIONS))


def decode_group_query(message: pb.GroupsRequest) -> GroupQuery:
    """Message -> query."""
    return GroupQuery(**taken(message, _GROUP_WORDS), **given(message, _GROUP_OPTIONS))


def encode_sampled_group(group: SampledGroup) -> pb.SampledGroup:
    """Group -> message."""
    return pb.SampledGroup(
        group=group.group,
        policy=group.policy,
        flow=group.flow,
        **taken(group, _GROUP_FIELDS),
        **taken(group, _GROUP_FIGURES),
    )


def decode_sampled_group(message: pb.SampledGroup) -> SampledGroup:
    """Message -> group."""
    return SampledGroup(
        group=GroupId(message.group),
        policy=PolicyId(message.policy),
        flow=FlowId(message.flow),
        **taken(message, _GROUP_FIELDS),
        **given(message, _GROUP_FIGURES),
    )


def encode_event_query(query: EventQuery) -> pb.EventsRequest:
    """Query -> message."""
    return pb.EventsRequest(kinds=query.kinds, before=query.before, **taken(query, _EVENT_WORDS))


def decode_event_query(message: pb.EventsRequest) -> EventQuery:
    """Message -> query."""
    return EventQuery(kinds=tuple(message.kinds), **given(message, ("before",)), **taken(message, _EVENT_WORDS))


def _decode_failure(message: pb.SampledTrajectory) -> Failure | None:
    if not message.failure_boundary:
        return None
    try:
        boundary = Boundary(message.failure_boundary)
    except ValueError:
        raise InvalidInput(
            f"trajectory {message.task} broke at the unknown boundary {message.failure_boundary!r}"
        ) from None
    return Failure(boundary=boundary, message=message.failure_message)
