"""Codec of queries on sampled trajectories, groups and events, and of their results."""

from astraflow.contract.errors import InvalidInput
from astraflow.contract.failures import Boundary, Failure
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId
from astraflow.contract.queries import (
    EventQuery,
    GroupQuery,
    RewardBin,
    RewardHistogram,
    RewardQuery,
    SampledGroup,
    TrajectoryQuery,
)
from astraflow.contract.reports import SampledTrajectory
from astraflow.wire.codec_agent_calls import decode_calls, decode_outcome, encode_calls
from astraflow.wire.codec_common import (
    decode_ending,
    decode_spans,
    encode_spans,
    matching_fields,
    optional_fields,
    sorted_map,
)
from astraflow.wire.pb import control_plane_pb2 as pb

_SAMPLE_FIELDS = (
    "ordinal",
    "at",
    "outcome",
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
    "index",
    "role",
)
_SAMPLE_LISTS = ("text_ends", "span_s", "turn_rewards", "token_ends", "logprobs")
_TRAJECTORY_WORDS = (
    "policy",
    "flow",
    "group",
    "task",
    "node",
    "outcome",
    "text",
    "role",
    "term",
    "with_tokens",
    "with_calls",
    "limit",
)
_TRAJECTORY_OPTIONS = (
    "step",
    "first_step",
    "last_step",
    "min_reward",
    "max_reward",
    "min_term",
    "max_term",
    "is_truncated",
    "is_failed",
    "before",
    "after",
)
_GROUP_WORDS = ("policy", "flow", "outcome", "limit")
_GROUP_OPTIONS = ("step", "first_step", "last_step", "before")
_GROUP_FIELDS = ("ordinal", "at", "outcome", "trajectories", "failed", "truncated")
_GROUP_FIGURES = ("step", "reward_mean", "reward_min", "reward_max")
_BIN_FIELDS = ("begin", "end", "lowest", "highest", "trajectories", "groups")
_HISTOGRAM_COUNTS = ("endings", "roles", "terms", "calls")
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
        parent=sample.parent,
        parent_turn=sample.parent_turn,
        reward_terms=dict(sample.reward_terms),
        labels=dict(sample.labels),
        call_outcomes=dict(sample.call_outcomes),
        calls=encode_calls(sample.calls),
        ending=sample.ending.value if sample.ending else "",
        **matching_fields(sample, _SAMPLE_LISTS),
        failure_boundary=sample.failure.boundary.value if sample.failure else "",
        failure_message=sample.failure.message if sample.failure else "",
        **matching_fields(sample, _SAMPLE_FIELDS),
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
        metrics=sorted_map(message.metrics),
        reward_terms=sorted_map(message.reward_terms),
        labels=sorted_map(message.labels),
        call_outcomes=sorted_map(message.call_outcomes),
        calls=decode_calls(message.calls),
        ending=decode_ending(message.ending),
        failure=_decode_failure(message),
        text_ends=tuple(message.text_ends),
        span_s=tuple(message.span_s),
        turn_rewards=tuple(message.turn_rewards),
        token_ends=tuple(message.token_ends),
        logprobs=tuple(message.logprobs),
        **optional_fields(message, ("step", "parent", "parent_turn")),
        **matching_fields(message, _SAMPLE_FIELDS),
    )


def encode_trajectory_query(query: TrajectoryQuery) -> pb.TrajectoriesRequest:
    """Query -> message."""
    return pb.TrajectoriesRequest(
        ending=query.ending.value if query.ending else "",
        call=query.call.value if query.call else "",
        **matching_fields(query, _TRAJECTORY_WORDS),
        **matching_fields(query, _TRAJECTORY_OPTIONS),
    )


def decode_trajectory_query(message: pb.TrajectoriesRequest) -> TrajectoryQuery:
    """Message -> query."""
    return TrajectoryQuery(
        ending=decode_ending(message.ending),
        call=decode_outcome(message.call) if message.call else None,
        **matching_fields(message, _TRAJECTORY_WORDS),
        **optional_fields(message, _TRAJECTORY_OPTIONS),
    )


def encode_reward_query(query: RewardQuery) -> pb.RewardsRequest:
    """Query -> message."""
    return pb.RewardsRequest(matching=encode_trajectory_query(query.matching), max_bins=query.max_bins, term=query.term)


def decode_reward_query(message: pb.RewardsRequest) -> RewardQuery:
    """Message -> query."""
    return RewardQuery(matching=decode_trajectory_query(message.matching), max_bins=message.max_bins, term=message.term)


def encode_histogram(histogram: RewardHistogram) -> pb.RewardsReply:
    """Histogram -> message."""
    return pb.RewardsReply(
        bins=[pb.RewardBin(**matching_fields(reward_bin, _BIN_FIELDS)) for reward_bin in histogram.bins],
        failed=histogram.failed,
        **{name: dict(counts) for name, counts in matching_fields(histogram, _HISTOGRAM_COUNTS).items()},
    )


def decode_histogram(message: pb.RewardsReply) -> RewardHistogram:
    """Message -> histogram."""
    bins = tuple(RewardBin(**matching_fields(reward_bin, _BIN_FIELDS)) for reward_bin in message.bins)
    counts = {name: sorted_map(counts) for name, counts in matching_fields(message, _HISTOGRAM_COUNTS).items()}
    return RewardHistogram(bins=bins, failed=message.failed, **counts)


def encode_group_query(query: GroupQuery) -> pb.GroupsRequest:
    """Query -> message."""
    return pb.GroupsRequest(**matching_fields(query, _GROUP_WORDS), **matching_fields(query, _GROUP_OPTIONS))


def decode_group_query(message: pb.GroupsRequest) -> GroupQuery:
    """Message -> query."""
    return GroupQuery(**matching_fields(message, _GROUP_WORDS), **optional_fields(message, _GROUP_OPTIONS))


def encode_sampled_group(group: SampledGroup) -> pb.SampledGroup:
    """Group -> message."""
    return pb.SampledGroup(
        group=group.group,
        policy=group.policy,
        flow=group.flow,
        **matching_fields(group, _GROUP_FIELDS),
        **matching_fields(group, _GROUP_FIGURES),
    )


def decode_sampled_group(message: pb.SampledGroup) -> SampledGroup:
    """Message -> group."""
    return SampledGroup(
        group=GroupId(message.group),
        policy=PolicyId(message.policy),
        flow=FlowId(message.flow),
        **matching_fields(message, _GROUP_FIELDS),
        **optional_fields(message, _GROUP_FIGURES),
    )


def encode_event_query(query: EventQuery) -> pb.EventsRequest:
    """Query -> message."""
    return pb.EventsRequest(kinds=query.kinds, before=query.before, **matching_fields(query, _EVENT_WORDS))


def decode_event_query(message: pb.EventsRequest) -> EventQuery:
    """Message -> query."""
    return EventQuery(
        kinds=tuple(message.kinds), **optional_fields(message, ("before",)), **matching_fields(message, _EVENT_WORDS)
    )


def _decode_failure(message: pb.SampledTrajectory) -> Failure | None:
    if not message.failure_boundary:
        return None
    try:
        boundary = Boundary(message.failure_boundary)
    except ValueError:
        raise InvalidInput(
            f"cannot decode trajectory {message.task!r}: unknown boundary {message.failure_boundary!r}; "
            "install the same release on both sides",
            code="message.unknown_value",
        ) from None
    return Failure(boundary=boundary, message=message.failure_message)
