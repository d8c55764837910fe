"""Advice on pools and questions about it, both ways."""

from enum import Enum
from typing import TypeVar

from astraflow.contract.advice import (
    Cap,
    FleetTerms,
    Mode,
    PoolAdvice,
    PoolTerms,
    Reason,
    WhatIfAnswer,
    WhatIfQuestion,
)
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PoolId
from astraflow.wire.codec_common import decode_json, encode_json, given, plain, taken
from astraflow.wire.pb import control_plane_pb2 as pb

E = TypeVar("E", bound=Enum)

_ADVICE_FIELDS = (
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

_POOL_TERMS = (
    *("min_nodes", "max_nodes", "is_spot", "price_per_hour", "launch_delay_s", "is_held"),
    *("nodes", "dollars_per_hour", "dollars_today", "failures"),
)
_POOL_TERMS_OPTIONAL = ("dollars_per_hour_max", "dollars_per_day_max", "shut_until")
_TERMS = ("is_killed", "dollars_today")
_TERMS_OPTIONAL = ("dollars_per_hour_max", "dollars_per_day_max")


def encode_advice(advice: PoolAdvice) -> pb.PoolAdvice:
    """Advice -> message."""
    return pb.PoolAdvice(
        pool=advice.pool,
        mode=advice.mode.value,
        reasons=[reason.value for reason in advice.reasons],
        capped_by=[cap.value for cap in advice.capped_by],
        victims=advice.victims,
        inputs=dict(advice.inputs),
        **taken(advice, _ADVICE_FIELDS),
    )


def decode_advice(message: pb.PoolAdvice) -> PoolAdvice:
    """Message -> advice. Raises: InvalidInput."""
    return PoolAdvice(
        pool=PoolId(message.pool),
        mode=_member(Mode, message.mode),
        reasons=tuple(_member(Reason, reason) for reason in message.reasons),
        capped_by=tuple(_member(Cap, cap) for cap in message.capped_by),
        victims=tuple(NodeId(node) for node in message.victims),
        inputs=plain(message.inputs),
        **taken(message, _ADVICE_FIELDS),
    )


def encode_terms(terms: FleetTerms) -> pb.FleetTerms:
    """Terms -> message."""
    return pb.FleetTerms(
        pools=[
            pb.PoolTerms(pool=pool.pool, mode=pool.mode.value, **taken(pool, _POOL_TERMS + _POOL_TERMS_OPTIONAL))
            for pool in terms.pools
        ],
        **taken(terms, _TERMS + _TERMS_OPTIONAL),
    )


def decode_terms(message: pb.FleetTerms) -> FleetTerms:
    """Message -> terms. Raises: InvalidInput."""
    return FleetTerms(
        pools=tuple(_pool_terms(pool) for pool in message.pools),
        **taken(message, _TERMS),
        **given(message, _TERMS_OPTIONAL),
    )


def _pool_terms(message: pb.PoolTerms) -> PoolTerms:
    return PoolTerms(
        pool=PoolId(message.pool),
        mode=_member(Mode, message.mode),
        **taken(message, _POOL_TERMS),
        **given(message, _POOL_TERMS_OPTIONAL),
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
        advice=[encode_advice(advice) for advice in answer.advice],
        node_hours=dict(answer.node_hours),
        recorded_node_hours=dict(answer.recorded_node_hours),
        **taken(answer, _ANSWER_FIELDS),
    )


def decode_answer(message: pb.WhatIfReply) -> WhatIfAnswer:
    """Message -> answer. Raises: InvalidInput."""
    return WhatIfAnswer(
        advice=tuple(decode_advice(advice) for advice in message.advice),
        node_hours=plain(message.node_hours),
        recorded_node_hours=plain(message.recorded_node_hours),
        **taken(message, _ANSWER_FIELDS),
    )


def _member(kind: type[E], value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise InvalidInput(f"advice speaks of the {kind.__name__.lower()} {value!r}; known: {known}") from None
