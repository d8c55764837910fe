"""Generic converter between contract types and messages, by the names of their fields.

    message = to_message(report, pb.Report)
    report = from_message(message, Report)

| field of the dataclass | field of the message |
|---|---|
| `str`, `int`, `float`, `bool`, `bytes`, an id | scalar; ids are checked |
| enum | string with its value |
| mapping of JSON values | string with a JSON object |
| dataclass | message |
| tuple | repeated |
| mapping | map, read in the order of its keys |
| `T | None` | field with presence; a string without presence is empty for None |
| tuple of a repeated field or None | message whose only field is repeated |

A pair is compiled on its first use. A dataclass field without a message field, or a message field without a dataclass
field, is an error then: a new field is added to the dataclass and to the `.proto` file, and nowhere else. Arrays, and
the frames of the data and weight planes, have codecs of their own.
"""

import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Name, NodeId, Version
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.agent_calls import AgentCall
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.spans import Span
from astraflow.contract.weight_reports import LinkReport
from astraflow.wire.codecs.agent_calls import decode_calls, encode_calls
from astraflow.wire.codecs.common import decode_json, decode_spans, encode_json, encode_spans

T = TypeVar("T")
M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=Enum)

Field = Any
"""Descriptor of a message's field: protobuf has two types of it, for its two implementations."""
Encoder = Callable[[Any], Any]
Decoder = Callable[[Any, "Memo | None"], Any]
"""Returns a field of the dataclass from the value of the message's field."""
MessageDecoder = Callable[[Any, "Memo | None"], Any]
"""Returns a field of the dataclass from the message: for fields that are None without a value there."""

_MESSAGE_ONLY = {"AppliedPlan": {"refusal"}, "Report": {"is_without_nodes"}}
"""Fields of messages that are read apart from the dataclass."""


def to_message(value: Any, kind: type[M]) -> M:
    """Returns the message of a dataclass."""
    return cast("M", _record(type(value), kind).encode(value))


def from_message(
    message: Message, kind: type[T], *, memo: "Memo | None" = None, replaced: Mapping[str, Any] | None = None
) -> T:
    """Returns the dataclass of a message. replaced: fields that are not read from the message.

    Raises: InvalidInput for invalid ids, JSON and unknown values of enums.
    """
    record = _record(kind, type(message))
    return cast("T", record.decode_rest(message, memo, replaced) if replaced else record.decode(message, memo))


class Memo:
    """Reuses values of the previous message that did not change: the facts and link statistics of nodes.

    Call `begin` before each message; values that are absent from it are forgotten.
    """

    KINDS = (NodeFacts, LinkReport)

    def __init__(self) -> None:
        self._previous: dict[tuple[type, bytes], Any] = {}
        self._current: dict[tuple[type, bytes], Any] = {}

    def begin(self) -> None:
        self._previous, self._current = self._current, {}

    def read(self, message: Message, kind: type[T], decode: "Callable[[Message, Memo], T]") -> T:
        """Returns the value of equal bytes, else the decoded one."""
        key = (kind, message.SerializeToString())
        value = self._current.get(key)
        if value is None:
            value = self._previous.get(key) or decode(message, self)
            self._current[key] = value
        return cast("T", value)


@dataclass(frozen=True, slots=True)
class _Split:
    """Field of a dataclass that several fields of the message hold."""

    message_fields: tuple[str, ...]
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[Any], Any]


def encode_failure(failure: Failure | None) -> dict[str, str]:
    """Failure -> fields of a message."""
    return {} if failure is None else {"failure_boundary": failure.boundary.value, "failure_message": failure.message}


def decode_failure(message: Any) -> Failure | None:
    """Fields of a message -> failure. Raises: InvalidInput for an unknown boundary."""
    if not message.failure_boundary:
        return None
    return Failure(boundary=enum_member(Boundary, message.failure_boundary), message=message.failure_message)


class _Record:
    """Conversion of one dataclass to one message.

    A page decodes thousands of messages per second: a message's fields are read in one call, in the order of the
    dataclass, and only the values that differ in the dataclass are visited.
    """

    def __init__(self, kind: type, message: type[Message]) -> None:
        self._message = message
        self._construct: Callable[..., Any] = constructor(kind)
        by_name = dict(message.DESCRIPTOR.fields_by_name)
        self._encoders: list[tuple[str, Callable[[Any], Any], Encoder]] = []
        self._decoders: list[tuple[int, Decoder]] = []
        self._message_decoders: list[tuple[int, MessageDecoder]] = []
        self._names = tuple(field.name for field in fields(kind))
        splits = _SPLITS.get(kind, {})
        for name in (name for split in splits.values() for name in split.message_fields):
            del by_name[name]
        self._splits = tuple((attrgetter(name), split.encode) for name, split in splits.items())
        hints = get_type_hints(kind)
        self._read = _values_reader(
            [splits[name].message_fields[0] if name in splits else name for name in self._names]
        )
        for index, name in enumerate(self._names):
            if name in splits:
                self._message_decoders.append((index, _reader(splits[name].decode)))
                continue
            if name not in by_name:
                raise TypeError(f"{message.DESCRIPTOR.full_name} has no field {name!r} for {kind.__name__}")
            field: Field = by_name.pop(name)
            encode, decode = _converted_field(hints[name], field)
            self._encoders.append((name, attrgetter(name), encode))
            if _is_absent_as_none(hints[name], field):
                self._message_decoders.append((index, _present(field.name, decode)))
            elif decode is not _same:
                self._decoders.append((index, decode))
        if unread := by_name.keys() - _MESSAGE_ONLY.get(message.DESCRIPTOR.name, set()):
            raise TypeError(f"{kind.__name__} has no fields {sorted(unread)} of {message.DESCRIPTOR.full_name}")

    def encode(self, value: Any) -> Message:
        values = {name: encode(read(value)) for name, read, encode in self._encoders}
        for read, encode in self._splits:
            values |= encode(read(value))
        return self._message(**values)

    def decode(self, message: Any, memo: Memo | None) -> Any:
        values = list(self._read(message))
        for index, decode in self._decoders:
            values[index] = decode(values[index], memo)
        for index, decode in self._message_decoders:
            values[index] = decode(message, memo)
        return self._construct(*values)

    def decode_rest(self, message: Any, memo: Memo | None, replaced: Mapping[str, Any]) -> Any:
        """Decodes the fields that are not replaced."""
        values = list(self._read(message))
        for index, decode in self._decoders:
            if self._names[index] not in replaced:
                values[index] = decode(values[index], memo)
        for index, decode in self._message_decoders:
            if self._names[index] not in replaced:
                values[index] = decode(message, memo)
        return self._construct(*[replaced.get(name, value) for name, value in zip(self._names, values, strict=True)])


def constructor(kind: type[T]) -> Callable[..., T]:
    """Returns a function that constructs a dataclass from the values of all its fields, in order.

    The `__init__` of a frozen dataclass sets each field through `object.__setattr__`, which takes ten times as long as
    the `__init__` of an equal class that is not frozen. An instance of the latter is therefore made, and becomes one
    of the frozen class: both have the same slots.
    """
    names = [field.name for field in fields(cast("Any", kind))]
    if kind.__bases__ != (object,) or "__slots__" not in vars(kind) or hasattr(kind, "__post_init__"):
        return lambda *values: kind(**dict(zip(names, values, strict=True)))
    unfrozen = make_dataclass(kind.__name__, names, slots=True)

    def construct(*values: Any) -> Any:
        value = unfrozen(*values)
        value.__class__ = kind
        return value

    return construct


def _values_reader(names: Sequence[str]) -> Callable[[Any], Iterable[Any]]:
    """Returns a function that reads these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda message: [getattr(message, name) for name in names]


def _record(kind: type, message: type[Message]) -> _Record:
    record = _RECORDS.get((kind, message))
    if record is None:
        record = _RECORDS[kind, message] = _Record(kind, message)
    return record


_RECORDS: dict[tuple[type, type[Message]], _Record] = {}


def _converted_field(hint: Any, field: Field) -> tuple[Encoder, Decoder]:
    inner, is_optional = _without_none(hint)
    if field.is_repeated:
        return _repeated(inner, field)
    if is_optional and get_origin(inner) is tuple:
        return _wrapped(inner, field)
    encode, decode = _single(inner, field)
    if not is_optional:
        return encode, decode
    if field.has_presence:
        return lambda value: None if value is None else encode(value), decode
    return (
        lambda value: "" if value is None else encode(value),
        lambda text, memo: decode(text, memo) if text else None,
    )


def _is_absent_as_none(hint: Any, field: Field) -> bool:
    """Returns whether a field of the dataclass is None if the message has no value for it."""
    return _without_none(hint)[1] and not field.is_repeated and bool(field.has_presence)


def _present(name: str, decode: Decoder) -> MessageDecoder:
    """Returns a decoder of a field that may be absent."""
    read = attrgetter(name)
    return lambda message, memo: decode(read(message), memo) if message.HasField(name) else None


def _repeated(hint: Any, field: Field) -> tuple[Encoder, Decoder]:
    """Repeated fields are read as slices: their iterators end with an exception, which takes as long as two values."""
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return _map(hint, entry.fields_by_name["key"], entry.fields_by_name["value"])
    (element, *_) = get_args(hint)
    if element is Span:
        return encode_spans, lambda spans, _: decode_spans(spans)
    encode, decode = _single(element, field)
    if decode is _same:
        return _same_value, lambda values, _: tuple(values[:]) if values else ()
    return (
        lambda values: [encode(value) for value in values],
        lambda values, memo: tuple([decode(value, memo) for value in values[:]]) if values else (),
    )


def _map(hint: Any, key: Field, value: Field) -> tuple[Encoder, Decoder]:
    """Maps are read in the order of their keys, so that equal reports print equally.

    Thousands of nodes report the same counters: the keys of the previous map are tried first, so that they are neither
    read nor sorted again, and all maps share them.
    """
    key_hint, value_hint = get_args(hint)
    (encode_key, decode_key), (encode, decode) = _single(key_hint, key), _single(value_hint, value)
    known: tuple[list[Any], list[Any]] = [], []
    """Keys of the previous map, sorted, as in the message and decoded."""

    def decode_map(values: Any, memo: Memo | None) -> dict[Any, Any]:
        nonlocal known
        keys, decoded_keys = known
        items = list(map(values.get, keys)) if len(values) == len(keys) else [None]
        if None in items:
            keys = sorted(values)
            decoded_keys = [sys.intern(key) if key_hint is str else decode_key(key, None) for key in keys]
            known = keys, decoded_keys
            items = [values[key] for key in keys]
        return dict(
            zip(decoded_keys, items if decode is _same else [decode(item, memo) for item in items], strict=True)
        )

    return (lambda values: {encode_key(key): encode(value) for key, value in values.items()}), decode_map


def _wrapped(hint: Any, field: Field) -> tuple[Encoder, Decoder]:
    """Converts an optional tuple: a message distinguishes an empty one from none."""
    wrapper = GetMessageClass(field.message_type)
    (element,) = field.message_type.fields
    encode, decode = _repeated(hint, element)
    read = attrgetter(element.name)
    return (
        lambda values: None if values is None else wrapper(**{element.name: encode(values)}),
        lambda message, memo: decode(read(message), memo),
    )


def _single(hint: Any, field: Field) -> tuple[Encoder, Decoder]:
    if get_origin(hint) is tuple:  # of calls, which travel as one compressed block
        assert get_args(hint)[0] is AgentCall, hint  # noqa: S101 (a pair that does not fit is an error of the code)
        return encode_calls, lambda block, _: decode_calls(block)
    if get_origin(hint) is Mapping:
        what = f"{field.containing_type.name}.{field.name}"
        return encode_json, lambda text, _: decode_json(text, what=what)
    if is_dataclass(hint):
        return _nested(cast("type", hint), GetMessageClass(field.message_type))
    if issubclass(hint, Enum):
        members = _Members(hint)
        return attrgetter("value"), lambda text, _: members[text]
    if issubclass(hint, Name | Version):
        construct = lru_cache(maxsize=8192)(NodeId.unchecked if hint is NodeId else hint)
        return _same_value, lambda value, _: construct(value)
    return _same_value, _same


def _nested(kind: type, message: type[Message]) -> tuple[Encoder, Decoder]:
    record = _record(kind, message)
    if kind not in Memo.KINDS:
        return record.encode, lambda value, memo: record.decode(value, memo)

    def decode(value: Any, memo: Memo | None) -> Any:
        if memo is None:
            return record.decode(value, memo)
        return memo.read(value, kind, record.decode)

    return record.encode, decode


def enum_member(kind: type[E], text: str) -> E:
    """Returns the member of an enum with this value. Raises: InvalidInput that names all values."""
    try:
        return kind(text)
    except ValueError:
        values = ", ".join(str(member.value) for member in kind)
        raise InvalidInput(
            f"cannot decode {kind.__name__}: unknown value {text[:80]!r}; use one of {values}",
            code="message.unknown_value",
        ) from None


class _Members(dict[str, Enum]):
    """Members of an enum by value. Raises: InvalidInput for an unknown value."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__({member.value: member for member in kind})
        self._kind = kind

    def __missing__(self, text: str) -> Enum:
        return enum_member(self._kind, text)


def _same_value(value: Any) -> Any:
    return value


def _same(value: Any, memo: Memo | None) -> Any:
    return value


def _reader(read: Callable[[Any], Any]) -> MessageDecoder:
    return lambda message, _: read(message)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Returns a type without None, and whether it had None."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    (inner,) = [part for part in get_args(hint) if part is not type(None)]
    return inner, True


_FAILURE = _Split(("failure_boundary", "failure_message"), encode_failure, decode_failure)
_SPLITS: dict[type, dict[str, _Split]] = {SampledTrajectory: {"failure": _FAILURE}}
