"""Limits of requests: size of each method's message, and values of its fields.

Declared by proto field and applied where requests are parsed (`wire.incoming_calls`, and `codecs.data` for pushes):
numbers are finite and bounded; texts, lists and maps have a largest size. Clients clip their requests to the same
limits (`clipped_to_limits`), so that a valid peer is never refused for an infinite number or a text that is too long.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from astraflow.contract.errors import InvalidInput
from astraflow.contract.nodes import MAX_CAPACITY
from astraflow.contract.rollouts.agent_calls import MAX_BODY_CHARACTERS, MAX_CALLS, MAX_LIVE_SESSIONS
from astraflow.contract.rollouts.limits import MAX_ABS_REWARD
from astraflow.contract.rollouts.timelines import MAX_HOPS
from astraflow.wire.channel import MAX_MESSAGE_BYTES
from astraflow.wire.pb import common_pb2

M = TypeVar("M", bound=Message)

KIB: Final = 2**10
MIB: Final = 2**20

MAX_NUMBER: Final = 1e18
"""Largest magnitude of a number: above all counts of bytes or tokens, and sums of squares stay finite."""

_ID_CHARS = 128
_TASKS_BYTES = MAX_CAPACITY * (_ID_CHARS + 3)

_SESSIONS_BYTES = MAX_LIVE_SESSIONS * 2 * (_ID_CHARS + 64)

_SERVICE_BYTES = {"NodeData": 64 * KIB, "TrainerData": 64 * KIB, "WeightPlane": 64 * KIB, "Enrollment": 16 * KIB}
_OTHER_BYTES = MIB
"""Control and fleet planes, whose callers are operators and agents."""

_METHOD_BYTES = {
    "NodeData/Join": 64 * KIB + _TASKS_BYTES,
    "NodeData/Heartbeat": 64 * KIB + _TASKS_BYTES + _SESSIONS_BYTES,
    "NodeData/Push": MAX_MESSAGE_BYTES,
    "NodeData/HandBack": 32 * MIB,
    "TrainerData/ReportStep": 256 * KIB,
    "WeightPlane/Publish": 16 * MIB,
    "FleetPlane/AppendTranscript": 16 * MIB,
}


@cache
def max_request_bytes(path: str) -> int:
    """Returns the maximum size of a request in bytes. path: gRPC path, `/astraflow.v1.SERVICE/METHOD`."""
    method = path.rpartition(".")[2]
    return _METHOD_BYTES.get(method, _SERVICE_BYTES.get(method.partition("/")[0], _OTHER_BYTES))


def check_size(path: str, size_bytes: int) -> None:
    """Checks the size of a request before it is parsed. Raises: InvalidInput."""
    limit_bytes = max_request_bytes(path)
    if size_bytes > limit_bytes:
        raise InvalidInput(
            f"cannot accept a request of {size_bytes} bytes to {path!r}: the limit is {limit_bytes} bytes; send less",
            code="request.too_large",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLimit:
    """Limit of one field. None for no limit besides the message's size."""

    items: int | None = 4096
    """Entries of a list or a map."""
    chars: int | None = 16 * KIB
    """Characters of a text, of each text of a list, and of each value of a map."""
    is_label: bool = False
    """Text of one line without control characters, because it is shown in tables."""
    is_address: bool = False
    """HOST:PORT, or an http or https link."""
    number: float = MAX_NUMBER
    """Largest magnitude."""


_KEY_CHARS = 128
_DEFAULT = FieldLimit()
_UNLIMITED = FieldLimit(items=None, chars=None)
_COUNT = FieldLimit(number=2.0**53)
"""Counts up to this limit are exact in every language and database that reads a report."""
_ID = FieldLimit(chars=_ID_CHARS, is_label=True)
_LABEL = FieldLimit(chars=256, is_label=True)
_ENTRIES = FieldLimit(items=64)
_TASKS = FieldLimit(items=MAX_CAPACITY, chars=_ID_CHARS, is_label=True)

_LIMITS: Mapping[str, FieldLimit] = {
    **dict.fromkeys(("NodeFacts.name", "NodeFacts.pool"), _ID),
    **dict.fromkeys(("NodeFacts.region", "NodeFacts.engine", "NodeFacts.hardware"), _LABEL),
    **dict.fromkeys(("NodeFacts.software", "NodeFacts.precision"), _LABEL),
    "NodeFacts.capacity": FieldLimit(number=MAX_CAPACITY),
    "NodeFacts.running": _TASKS,
    "NodeFacts.policies": FieldLimit(items=64, chars=_ID_CHARS, is_label=True),
    "HeartbeatRequest.running": _TASKS,
    "HeartbeatRequest.errors": FieldLimit(items=8, chars=2 * KIB),
    "HeartbeatRequest.leave_reason": FieldLimit(chars=2 * KIB),
    **dict.fromkeys(("HeartbeatRequest.counters", "HeartbeatRequest.gauges", "HeartbeatRequest.versions"), _ENTRIES),
    "HeartbeatRequest.links": FieldLimit(items=64),
    "HeartbeatRequest.sessions": FieldLimit(items=MAX_LIVE_SESSIONS),
    **dict.fromkeys(("LiveSession.task", "LiveSession.flow"), _ID),
    **dict.fromkeys(("LiveSession.calls", "LiveSession.waiting_calls", "LiveSession.tokens"), _COUNT),
    "AgentCalls.calls": FieldLimit(items=MAX_CALLS),
    **dict.fromkeys(("AgentCall.dialect", "AgentCall.outcome"), _ID),
    "AgentCall.model": _LABEL,
    **dict.fromkeys(("AgentCall.request", "AgentCall.reply"), FieldLimit(chars=MAX_BODY_CHARACTERS)),
    **{
        f"LinkReport.{field.name}": _COUNT
        for field in common_pb2.LinkReport.DESCRIPTOR.fields
        if field.type == FieldDescriptor.TYPE_UINT64
    },
    "LinkReport.source": FieldLimit(chars=512, is_label=True, is_address=True),
    **dict.fromkeys(("BatchingFacts.batching", "BatchingFacts.precision"), _ID),
    **dict.fromkeys(("BatchingFacts.reasons", "BatchingFacts.costs"), FieldLimit(chars=2 * KIB)),
    "LeaseRequest.versions": _ENTRIES,
    "LeaveRequest.reason": FieldLimit(chars=2 * KIB),
    **dict.fromkeys(("EpisodeDetails.continued_tokens", "PartialRollout.continued_tokens"), _COUNT),
    "EpisodeDetails.hops": FieldLimit(items=MAX_HOPS + 2),
    "Hop.name": _ID,
    **dict.fromkeys(("Hop.detail", "Hop.error"), FieldLimit(chars=512)),
    "EpisodeDetails.failure_message": FieldLimit(chars=8 * KIB),
    "PushRequest.tasks": FieldLimit(chars=_ID_CHARS),
    **{
        f"Trajectories.{name}": _UNLIMITED
        for name in ("policy_indices", "is_truncated", "span_counts", "span_lengths", "span_versions", "details")
    },
    "Trajectories.rewards": FieldLimit(items=None, number=MAX_ABS_REWARD),
    "TrajectoryDetails.metrics": FieldLimit(items=256),
    "TrajectoryDetails.prompt_text": _UNLIMITED,
    "TrajectoryDetails.completion_text": _UNLIMITED,
    "TrajectoryDetails.answer": _UNLIMITED,
    "TrajectoryDetails.text_ends": _UNLIMITED,
    "TrajectoryDetails.span_s": _UNLIMITED,
    "TrajectoryDetails.token_ends": _UNLIMITED,
    "TrajectoryDetails.role": _ID,
    "TrajectoryDetails.teacher": _ID,
    "TrajectoryDetails.teacher_prompt": _UNLIMITED,
    "TrajectoryDetails.ending": _ID,
    **{f"TrajectoryDetails.turn_{name}": FieldLimit(number=MAX_ABS_REWARD) for name in ("rewards", "discounts")},
    "TrajectoryDetails.reward_terms": FieldLimit(items=64),
    "TrajectoryDetails.labels": FieldLimit(items=32, chars=4 * KIB),
    "TrajectoryDetails.speakers": FieldLimit(items=None, chars=_ID_CHARS, is_label=True),
    "Span.speaker": _ID,
    "RecordedGeneration.spans": _UNLIMITED,
    "AttachRequest.backend": _LABEL,
    "AttachRequest.damage": FieldLimit(chars=2 * KIB),
    "ReportStepRequest.metrics": FieldLimit(items=1024),
    "ReportWaitRequest.problem": FieldLimit(chars=2 * KIB),
    **dict.fromkeys(("ReportFailureRequest.attempt", "ReportFailureRequest.end"), _ID),
    "ReportFailureRequest.error": FieldLimit(chars=2 * KIB),
    "Manifest.tensors": FieldLimit(items=2**18),
    "Probe.lengths": _UNLIMITED,
    "Probe.scored_from": _UNLIMITED,
    "EnrollRequest.role": _ID,
    "EnrollRequest.name": _ID,
    "EnrollRequest.pool": _ID,
    "FleetTranscriptEntry.body": _UNLIMITED,
}
"""Limits by field; other fields have the default."""


def check(message: Message) -> None:
    """Checks all fields of a request. Raises: InvalidInput that names the field."""
    for rule in _rules(message.DESCRIPTOR):
        rule.check(getattr(message, rule.name))


def clipped_to_limits(message: M) -> M:
    """Returns the message with invalid fields clipped: texts and lists are cut, numbers bounded or removed."""
    try:
        check(message)
    except InvalidInput:
        _fit(message)
    return message


def _fit(message: Message) -> None:
    present = {field.name for field, _ in message.ListFields()}
    for rule in _rules(message.DESCRIPTOR):
        if rule.name in present:
            rule.fit(message)


def is_finite(message: Message) -> bool:
    """Returns whether all numbers are finite and bounded. Stored messages may be older than the checks of requests."""
    return all(rule.is_finite(getattr(message, rule.name)) for rule in _rules(message.DESCRIPTOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Limit of one field, and how to check its values."""

    name: str
    limit: FieldLimit
    kind: str
    """`number`, `text`, `message`, or `other` for values without a limit."""
    is_list: bool
    is_map: bool

    def check(self, value: Any) -> None:
        if not (self.is_list or self.is_map):
            self._check_value(value)
            return
        if not value:
            return
        if self.limit.items is not None and len(value) > self.limit.items:
            raise self._refused(f"it has {len(value)} entries; send at most {self.limit.items}")
        if self.is_map:
            longest = max((len(key) for key in value if isinstance(key, str)), default=0)
            if longest > _KEY_CHARS:
                raise self._refused(f"a key has {longest} characters; send at most {_KEY_CHARS}")
            value = value.values()
        if self.kind != "other" and not self._are_valid(value):
            for item in value:
                self._check_value(item)

    def _are_valid(self, values: Any) -> bool:
        """Returns whether many numbers or plain texts are valid for certain, at a tenth of the cost of one by one."""
        if self.kind == "number":
            limit = self.limit.number
            return -limit <= min(values) and max(values) <= limit and not any(map(math.isnan, values))
        is_plain = self.kind == "text" and not (self.limit.is_label or self.limit.is_address)
        return is_plain and self.limit.chars is not None and max(map(len, values)) <= self.limit.chars

    def fit(self, message: Any) -> None:
        value = getattr(message, self.name)
        if self.is_map:
            self._fit_map(value)
        elif self.is_list:
            if self.limit.items is not None:
                del value[self.limit.items :]
            for index, item in enumerate(value):
                if self.kind == "message":
                    _fit(item)
                elif self.kind != "other":
                    value[index] = self._fit_value(item)
        elif self.kind == "message":
            _fit(value)
        elif self.kind != "other":
            setattr(message, self.name, self._fit_value(value))

    def is_finite(self, value: Any) -> bool:
        if self.kind not in ("number", "message"):
            return True
        items = value.values() if self.is_map else value if self.is_list else (value,)
        if self.kind == "message":
            return all(is_finite(item) for item in items)
        return all(-MAX_NUMBER <= item <= MAX_NUMBER for item in items)

    def _fit_map(self, value: Any) -> None:
        for key in list(value):
            if self.kind == "message":
                _fit(value[key])
            elif self.kind == "number" and math.isnan(value[key]):
                del value[key]
            elif self.kind != "other":
                value[key] = self._fit_value(value[key])
        surplus = [key for key in value if isinstance(key, str) and len(key) > _KEY_CHARS]
        retained = [key for key in value if key not in surplus]
        surplus += retained[self.limit.items :] if self.limit.items is not None else []
        for key in surplus:
            del value[key]

    def _check_value(self, value: Any) -> None:
        if self.kind == "number":
            if not -self.limit.number <= value <= self.limit.number:
                raise self._refused(
                    f"{value} is not a finite number up to {self.limit.number:g}; send a smaller number"
                )
        elif self.kind == "text":
            problem = self._problem_of(value)
            if problem:
                raise self._refused(problem)
        elif self.kind == "message":
            check(value)

    def _problem_of(self, text: str) -> str:
        if not text:
            return ""
        limit = self.limit
        if limit.chars is not None and len(text) > limit.chars:
            return f"a text has {len(text)} characters; send at most {limit.chars}"
        if limit.is_label and not text.isprintable():
            return f"{text[:140]!r} has characters that cannot be printed; send one line of plain text"
        if limit.is_address and text and not _is_address(text):
            return f"{text[:140]!r} is not an address; send HOST:PORT or an http or https link"
        return ""

    def _fit_value(self, value: Any) -> Any:
        if self.kind == "number":
            bounded = 0.0 if math.isnan(value) else min(max(value, -self.limit.number), self.limit.number)
            return type(value)(bounded)
        if self.limit.is_label:
            value = "".join(letter if letter.isprintable() else " " for letter in value)
        return value if self.limit.chars is None else value[: self.limit.chars]

    def _refused(self, problem: str) -> InvalidInput:
        return InvalidInput(f"cannot accept the field {self.name!r}: {problem}", code="request.invalid_field")


def _is_address(text: str) -> bool:
    if text.startswith(("http://", "https://")):
        return True
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal()


@cache
def _rules(descriptor: Descriptor) -> tuple[_Rule, ...]:
    """Returns the rules of a message's fields; fields without a limit are omitted."""
    candidates = ((_rule(field), field.message_type) for field in descriptor.fields)
    return tuple(rule for rule, message_type in candidates if _has_limit(rule, message_type))


def _rule(field: FieldDescriptor) -> _Rule:
    entry = field.message_type
    is_map = entry is not None and entry.GetOptions().map_entry
    limit = _limit(field)
    return _Rule(
        name=field.name,
        limit=limit,
        kind=_kind(entry.fields_by_name["value"] if is_map and entry is not None else field, limit),
        is_list=field.is_repeated and not is_map,
        is_map=is_map,
    )


def _limit(field: FieldDescriptor) -> FieldLimit:
    assert field.containing_type is not None  # noqa: S101 (fields of messages have one; extensions are not used)
    return _LIMITS.get(f"{field.containing_type.name}.{field.name}", _DEFAULT)


def _kind(field: FieldDescriptor, limit: FieldLimit) -> str:
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return "number"
    if field.type == FieldDescriptor.TYPE_STRING:
        return "text"
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return "message"
    return "number" if limit.number < MAX_NUMBER else "other"


def _has_limit(rule: _Rule, message_type: Descriptor | None) -> bool:
    if rule.is_map or (rule.is_list and rule.limit.items is not None):
        return True
    if rule.kind == "message":
        return message_type is not None and bool(_rules(message_type))
    if rule.kind == "text":
        return rule.limit.chars is not None
    return rule.kind == "number"
