"""Limits of requests: how large each method's message may be, and what its fields may hold.

Declared once, by the names of the protos, and applied to every request at the one place where requests are parsed
(`wire.server`, and `codec_data` for pushes): numbers are finite and bounded, texts, lists and maps have a largest size.
Clients bring what they send within the same limits (`fitted`), so that an honest peer is never refused for a figure
that could not be computed or a text that became too long.
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
from astraflow.wire.channel import MAX_MESSAGE_BYTES
from astraflow.wire.pb import common_pb2

M = TypeVar("M", bound=Message)

KIB: Final = 2**10
MIB: Final = 2**20

MAX_NUMBER: Final = 1e18
"""Largest magnitude of a figure: beyond every count of bytes or tokens, and sums of squares stay finite."""

MAX_REWARD: Final = 1e9
"""Largest magnitude of a reward: sums of squares over a batch stay finite in float32 too."""

_ID_CHARS = 128
_TASKS_BYTES = MAX_CAPACITY * (_ID_CHARS + 3)

_SERVICE_BYTES = {"NodeData": 64 * KIB, "TrainerData": 64 * KIB, "WeightPlane": 64 * KIB, "Enrollment": 16 * KIB}
_OTHER_BYTES = MIB
"""Of the control and fleet planes, whose callers are operators and agents."""

_METHOD_BYTES = {
    "NodeData/Join": 64 * KIB + _TASKS_BYTES,
    "NodeData/Beat": 64 * KIB + _TASKS_BYTES,
    "NodeData/Push": MAX_MESSAGE_BYTES,
    "NodeData/HandBack": 32 * MIB,
    "TrainerData/ReportStep": 256 * KIB,
    "WeightPlane/Publish": 16 * MIB,
    "FleetPlane/KeepTranscript": 16 * MIB,
}


@cache
def largest_request(path: str) -> int:
    """Bytes of the largest request of a method. path: as gRPC calls it, `/astraflow.v1.SERVICE/METHOD`."""
    method = path.rpartition(".")[2]
    return _METHOD_BYTES.get(method, _SERVICE_BYTES.get(method.partition("/")[0], _OTHER_BYTES))


def check_size(path: str, size_bytes: int) -> None:
    """Check a request before it is parsed. Raises: InvalidInput."""
    most = largest_request(path)
    if size_bytes > most:
        raise InvalidInput(
            f"cannot accept a request of {size_bytes} bytes to {path}: the limit is {most} bytes; send less"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What one field may hold. None for no limit of its own: the message's size bounds it."""

    items: int | None = 4096
    """Entries of a list or a map."""
    chars: int | None = 16 * KIB
    """Characters of a text, of each text of a list, and of each value of a map."""
    is_label: bool = False
    """Text of one line, without control characters: it is shown in tables."""
    is_address: bool = False
    """HOST:PORT, or an http or https link."""
    number: float = MAX_NUMBER
    """Largest magnitude."""


_KEY_CHARS = 128
_DEFAULT = Limit()
_UNLIMITED = Limit(items=None, chars=None)
_COUNT = Limit(number=2.0**53)
"""Exact in every language and database that reads a report."""
_ID = Limit(chars=_ID_CHARS, is_label=True)
_LABEL = Limit(chars=256, is_label=True)
_FIGURES = Limit(items=64)
_TASKS = Limit(items=MAX_CAPACITY, chars=_ID_CHARS, is_label=True)

_LIMITS: Mapping[str, Limit] = {
    **dict.fromkeys(("NodeFacts.name", "NodeFacts.pool"), _ID),
    **dict.fromkeys(("NodeFacts.region", "NodeFacts.engine", "NodeFacts.hardware", "NodeFacts.software"), _LABEL),
    "NodeFacts.capacity": Limit(number=MAX_CAPACITY),
    "NodeFacts.running": _TASKS,
    "BeatRequest.running": _TASKS,
    "BeatRequest.errors": Limit(items=8, chars=2 * KIB),
    "BeatRequest.ending": Limit(chars=2 * KIB),
    **dict.fromkeys(("BeatRequest.counters", "BeatRequest.gauges", "BeatRequest.versions"), _FIGURES),
    "BeatRequest.links": Limit(items=64),
    **{
        f"LinkReport.{field.name}": _COUNT
        for field in common_pb2.LinkReport.DESCRIPTOR.fields
        if field.type == FieldDescriptor.TYPE_UINT64
    },
    "LinkReport.source": Limit(chars=512, is_label=True, is_address=True),
    "LeaseRequest.versions": _FIGURES,
    "LeaveRequest.reason": Limit(chars=2 * KIB),
    **dict.fromkeys(("Episode.continued_tokens", "Partial.continued_tokens"), _COUNT),
    "Episode.failure_message": Limit(chars=8 * KIB),
    "Trajectory.reward": Limit(number=MAX_REWARD),
    "Trajectory.spans": _UNLIMITED,
    "Trajectory.metrics": Limit(items=256),
    "Trajectory.prompt_text": _UNLIMITED,
    "Trajectory.completion_text": _UNLIMITED,
    "Trajectory.answer": _UNLIMITED,
    "Trajectory.text_ends": _UNLIMITED,
    "Trajectory.span_s": _UNLIMITED,
    "Recorded.spans": _UNLIMITED,
    "AttachRequest.backend": _LABEL,
    "ReportStepRequest.metrics": Limit(items=1024),
    "Manifest.tensors": Limit(items=2**18),
    "Probe.lengths": _UNLIMITED,
    "Probe.scored_from": _UNLIMITED,
    "EnrollRequest.role": _ID,
    "EnrollRequest.name": _ID,
    "EnrollRequest.pool": _ID,
    "FleetTranscriptEntry.body_json": _UNLIMITED,
}
"""By field; what is not named here has the default."""


def check(message: Message) -> None:
    """Check all fields of a request. Raises: InvalidInput that names the field."""
    for rule in _rules(message.DESCRIPTOR):
        rule.check(getattr(message, rule.name))


def fitted(message: M) -> M:
    """The message, changed where its fields would be refused: texts and lists are cut, figures bounded or left out."""
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
    """Whether all numbers of a message, whatever its size, are finite and bounded: what is kept may be older than the
    checks of what came in."""
    return all(rule.is_finite(getattr(message, rule.name)) for rule in _rules(message.DESCRIPTOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The limit of one field, and how its values are looked at."""

    name: str
    limit: Limit
    kind: str
    """`number`, `text`, `message`, or `other` for what has no limit but its number."""
    is_list: bool
    is_map: bool

    def check(self, value: Any) -> None:
        if not (self.is_list or self.is_map):
            self._check_one(value)
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
        if self.kind != "other":
            for one in value:
                self._check_one(one)

    def fit(self, message: Any) -> None:
        value = getattr(message, self.name)
        if self.is_map:
            self._fit_map(value)
        elif self.is_list:
            if self.limit.items is not None:
                del value[self.limit.items :]
            for place, one in enumerate(value):
                if self.kind == "message":
                    _fit(one)
                elif self.kind != "other":
                    value[place] = self._fit_one(one)
        elif self.kind == "message":
            _fit(value)
        elif self.kind != "other":
            setattr(message, self.name, self._fit_one(value))

    def is_finite(self, value: Any) -> bool:
        if self.kind not in ("number", "message"):
            return True
        ones = value.values() if self.is_map else value if self.is_list else (value,)
        if self.kind == "message":
            return all(is_finite(one) for one in ones)
        return all(-MAX_NUMBER <= one <= MAX_NUMBER for one in ones)

    def _fit_map(self, value: Any) -> None:
        for key in list(value):
            if self.kind == "message":
                _fit(value[key])
            elif self.kind == "number" and math.isnan(value[key]):
                del value[key]
            elif self.kind != "other":
                value[key] = self._fit_one(value[key])
        surplus = [key for key in value if isinstance(key, str) and len(key) > _KEY_CHARS]
        kept = [key for key in value if key not in surplus]
        surplus += kept[self.limit.items :] if self.limit.items is not None else []
        for key in surplus:
            del value[key]

    def _check_one(self, value: Any) -> None:
        if self.kind == "number":
            if not -self.limit.number <= value <= self.limit.number:
                raise self._refused(f"{value} is not a finite number up to {self.limit.number:g}; send one")
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
            return f"{text[:140]!r} is no address; send HOST:PORT or an http or https link"
        return ""

    def _fit_one(self, value: Any) -> Any:
        if self.kind == "number":
            bounded = 0.0 if math.isnan(value) else min(max(value, -self.limit.number), self.limit.number)
            return type(value)(bounded)
        if self.limit.is_label:
            value = "".join(letter if letter.isprintable() else " " for letter in value)
        return value if self.limit.chars is None else value[: self.limit.chars]

    def _refused(self, problem: str) -> InvalidInput:
        return InvalidInput(f"cannot accept the field {self.name!r}: {problem}")


def _is_address(text: str) -> bool:
    if text.startswith(("http://", "https://")):
        return True
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal()


@cache
def _rules(descriptor: Descriptor) -> tuple[_Rule, ...]:
    """The rules of a message's fields; fields that can break none are left out."""
    found = ((_rule(field), field.message_type) for field in descriptor.fields)
    return tuple(rule for rule, inner in found if _matters(rule, inner))


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


def _limit(field: FieldDescriptor) -> Limit:
    assert field.containing_type is not None  # noqa: S101 (fields of messages have one; extensions are not used)
    return _LIMITS.get(f"{field.containing_type.name}.{field.name}", _DEFAULT)


def _kind(field: FieldDescriptor, limit: Limit) -> str:
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return "number"
    if field.type == FieldDescriptor.TYPE_STRING:
        return "text"
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return "message"
    return "number" if limit.number < MAX_NUMBER else "other"


def _matters(rule: _Rule, inner: Descriptor | None) -> bool:
    if rule.is_map or (rule.is_list and rule.limit.items is not None):
        return True
    if rule.kind == "message":
        return inner is not None and bool(_rules(inner))
    if rule.kind == "text":
        return rule.limit.chars is not None
    return rule.kind == "number"
