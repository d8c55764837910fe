"""JSON form of reports: for `/api/v1/report` and for records of runs, and the parts that pages read back."""

import builtins
import dataclasses
import json
import math
import types
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import PluginKind
from astraflow.contract.records import Record
from astraflow.contract.reports.report import Event, FlowReport, Report, StreamReport
from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()

_DEFAULTS: tuple[tuple[type, Any], ...] = (
    (bool, False),
    (int, 0),
    (float, math.nan),
    (str, ""),
    (Mapping, {}),
    (tuple, ()),
)
"""Default for a field that was not recorded, by its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReport:
    """Parts of a run's last report that the page of a past run shows."""

    simulated: tuple[str, ...]
    flows: tuple[FlowReport, ...]
    streams: tuple[StreamReport, ...]
    events: tuple[Event, ...] = ()
    plugin_kinds: tuple[PluginKind, ...] = ()
    learning_faults: tuple[Record, ...] = ()


_REPORT = TypeAdapter(Report)

RECORDED_NODES = 100
"""Number of nodes above which a recorded report contains none; their figures are in the history."""


def recorded_json(report: Report) -> str:
    """Returns the report as it is recorded every two seconds: without nodes when there are many."""
    recorded = report if len(report.nodes) <= RECORDED_NODES else dataclasses.replace(report, nodes=())
    return report_to_json(recorded)


def report_to_json(report: Report) -> str:
    """Returns the whole report as a JSON object; numbers that are not finite become null."""
    return _REPORT.dump_json(report, warnings=False).decode()  # a warning for a value of another type ends no recording


def report_from_json(text: str) -> RecordedReport:
    """Parses the output of `report_to_json`; unreadable parts become empty."""
    try:
        content = json.loads(text)
    except (RecursionError, ValueError):
        content = {}
    content = content if isinstance(content, dict) else {}
    return RecordedReport(
        simulated=tuple(map(str, content.get("simulated") or ())),
        flows=_read_tables(FlowReport, content.get("flows")),
        streams=_read_tables(StreamReport, content.get("streams")),
        events=_read_tables(Event, content.get("events")),
        plugin_kinds=_read_tables(PluginKind, content.get("plugin_kinds")),
        learning_faults=_read_tables(Record, content.get("learning_faults")),
    )


def _read_tables(kind: type[T], content: Any) -> tuple[T, ...]:
    """Returns the readable entries of a list; other releases recorded other fields."""
    tables: list[T] = []
    for table in content if isinstance(content, list) else ():
        try:
            tables.append(_read(kind, table))
        except (ArithmeticError, AttributeError, InvalidInput, LookupError, TypeError, ValueError) as problem:
            log.warning("recorded table not read", problem=f"{type(problem).__name__}: {problem}")
    return tuple(tables)


def _read(kind: Any, content: Any) -> Any:
    """Builds a value of a type from its JSON. Fields that the type does not have are left out, and fields that were not
    recorded are empty; null is a number that was not finite."""
    arguments = get_args(kind)
    match get_origin(kind) or kind:
        case types.UnionType:
            return None if content is None else _read(arguments[0], content)
        case abc.Mapping:
            to_key = int if arguments[0] is int else str
            return {to_key(key): _read(arguments[1], value) for key, value in content.items()}
        case builtins.tuple:
            return tuple(_read(arguments[0], item) for item in content)
        case builtins.float:
            return math.nan if content is None else content
        case type() as of if dataclasses.is_dataclass(of):
            return of(**_fields(of, content))
        case type() as of if issubclass(of, Enum):
            return of(content)
    return content


def _fields(kind: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    missing = (field for field in fields if field.default is field.default_factory is dataclasses.MISSING)
    empty = {field.name: _empty(hints[field.name]) for field in missing if field.name not in content}
    return empty | {
        field.name: _read(hints[field.name], content[field.name]) for field in fields if field.name in content
    }


def _empty(kind: Any) -> Any:
    """Returns the value of a field that was not recorded."""
    origin = get_origin(kind) or kind
    if dataclasses.is_dataclass(origin):
        return _read(origin, {})
    return next(value for of, value in _DEFAULTS if issubclass(origin, of))


def json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
