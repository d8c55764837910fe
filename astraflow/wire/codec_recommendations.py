"""Codec of recommendations, fleet constraints and what-if replays."""

from enum import Enum
from typing import TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.recommendations import (
    FleetConstraints,
    LimitInEffect,
    Mode,
    PoolConstraints,
    PoolRecommendation,
    Reason,
    WhatIfAnswer,
    WhatIfQuestion,
)
from astraflow.wire.codec_common import decode_json, encode_json, matching_fields, optional_fields, sorted_map
from astraflow.wire.pb import control_plane_pb2 as pb

E = TypeVar("E", bound=Enum)

_RECOMMENDATION_FIELDS = (
    "at",
    "policy",
    "present",
    "pending",
    "target",
    "band_low",
    "band_high",
    "sentence",
    "input_hash",
)
_ANSWER_FIELDS = ("reports", "began_at", "ended_at", "dollars", "recorded_dollars", "wait", "recorded_wait")

_POOL_CONSTRAINTS = (
    *("min_nodes", "max_nodes", "is_spot", "price_per_hour", "launch_delay_s", "is_overridden"),
    *("nodes", "dollars_per_hour", "dollars_today", "failures"),
)
_POOL_CONSTRAINTS_OPTIONAL = ("dollars_per_hour_max", "dollars_per_day_max", "breaker_until")
_CONSTRAINTS = ("is_kill_switch_on", "dollars_today")
_CONSTRAINTS_OPTIONAL = ("dollars_per_hour_max", "dollars_per_day_max")


def encode_recommendation(recommendation: PoolRecommendation) -> pb.PoolRecommendation:
    """Recommendation -> message."""
    return pb.PoolRecommendation(
        pool=recommendation.pool,
        mode=recommendation.mode.value,
        reasons=[reason.value for reason in recommendation.reasons],
        limited_by=[limit.value for limit in recommendation.limited_by],
        victims=recommendation.victims,
        inputs=dict(recommendation.inputs),
        **matching_fields(recommendation, _RECOMMENDATION_FIELDS),
    )


def decode_recommendation(message: pb.PoolRecommendation) -> PoolRecommendation:
    """Message -> recommendation. Raises: InvalidInput."""
    return PoolRecommendation(
        pool=PoolId(message.pool),
        mode=_member(Mode, message.mode),
        reasons=tuple(_member(Reason, reason) for reason in message.reasons),
        limited_by=tuple(_member(LimitInEffect, limit) for limit in message.limited_by),
        victims=tuple(NodeId(node) for node in message.victims),
        inputs=sorted_map(message.inputs),
        **matching_fields(message, _RECOMMENDATION_FIELDS),
    )


def encode_fleet_constraints(constraints: FleetConstraints) -> pb.FleetConstraints:
    """Fleet constraints -> message."""
    return pb.FleetConstraints(
        pools=[
            pb.PoolConstraints(
                pool=pool.pool,
                mode=pool.mode.value,
                **matching_fields(pool, _POOL_CONSTRAINTS + _POOL_CONSTRAINTS_OPTIONAL),
            )
            for pool in constraints.pools
        ],
        **matching_fields(constraints, _CONSTRAINTS + _CONSTRAINTS_OPTIONAL),
    )


def decode_fleet_constraints(message: pb.FleetConstraints) -> FleetConstraints:
    """Message -> fleet constraints. Raises: InvalidInput."""
    return FleetConstraints(
        pools=tuple(_pool_constraints(pool) for pool in message.pools),
        **matching_fields(message, _CONSTRAINTS),
        **optional_fields(message, _CONSTRAINTS_OPTIONAL),
    )


def _pool_constraints(message: pb.PoolConstraints) -> PoolConstraints:
    return PoolConstraints(
        pool=PoolId(message.pool),
        mode=_member(Mode, message.mode),
        **matching_fields(message, _POOL_CONSTRAINTS),
        **optional_fields(message, _POOL_CONSTRAINTS_OPTIONAL),
    )


def encode_question(question: WhatIfQuestion) -> pb.WhatIfRequest:
    """Question -> message."""
    return pb.WhatIfRequest(
        options=encode_json(question.options),
        pools=encode_json(question.pools),
        resolution_s=question.resolution_s,
        limit=question.limit,
    )


def decode_question(message: pb.WhatIfRequest) -> WhatIfQuestion:
    """Message -> question. Raises: InvalidInput."""
    return WhatIfQuestion(
        options=decode_json(message.options, what="the sizer's options"),
        pools=decode_json(message.pools, what="the pools' options"),
        resolution_s=message.resolution_s,
        limit=message.limit,
    )


def encode_answer(answer: WhatIfAnswer) -> pb.WhatIfReply:
    """Answer -> message."""
    return pb.WhatIfReply(
        recommendations=[encode_recommendation(recommendation) for recommendation in answer.recommendations],
        node_hours=dict(answer.node_hours),
        recorded_node_hours=dict(answer.recorded_node_hours),
        **matching_fields(answer, _ANSWER_FIELDS),
    )


def decode_answer(message: pb.WhatIfReply) -> WhatIfAnswer:
    """Message -> answer. Raises: InvalidInput."""
    return WhatIfAnswer(
        recommendations=tuple(decode_recommendation(recommendation) for recommendation in message.recommendations),
        node_hours=sorted_map(message.node_hours),
        recorded_node_hours=sorted_map(message.recorded_node_hours),
        **matching_fields(message, _ANSWER_FIELDS),
    )


def _member(kind: type[E], value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        values = ", ".join(member.value for member in kind)
        raise InvalidInput(
            f"cannot decode recommendation: unknown {kind.__name__} {value!r}; use one of {values}",
            code="message.unknown_value",
        ) from None
