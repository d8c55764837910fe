"""JSON form of reports: for `/api/v1/report` and for records of runs, and the parts that pages read back."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, get_origin

from pydantic import TypeAdapter

from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import PlannedPlugins, PluginKind, PluginSlot
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.records import Record
from astraflow.contract.reports.report import (
    Event,
    FlowReport,
    Pace,
    Report,
    StreamGroups,
    StreamReport,
    TrainingReport,
)
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
        flows=_read_tables(_flow, content.get("flows")),
        streams=_read_tables(_stream, content.get("streams")),
        events=_read_tables(_event, content.get("events")),
        plugin_kinds=_read_tables(_plugin_kind, content.get("plugin_kinds")),
        learning_faults=_read_tables(_record, content.get("learning_faults")),
    )


def _read_tables(read: Callable[[dict[str, Any]], T], content: Any) -> tuple[T, ...]:
    """Returns the readable entries of a list; other releases recorded other fields."""
    tables: list[T] = []
    for table in content if isinstance(content, list) else ():
        try:
            tables.append(read(table))
        except (ArithmeticError, AttributeError, InvalidInput, LookupError, TypeError, ValueError) as problem:
            log.warning("recorded table not read", problem=f"{type(problem).__name__}: {problem}")
    return tuple(tables)


def _with_defaults(kind: type[T], content: dict[str, Any]) -> T:
    """Builds a dataclass, with empty defaults for missing fields and without unknown ones."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # T is a dataclass
    empty = {
        field.name: _default_of(get_origin(field.type) or field.type)
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name not in content
    }
    field_names = {field.name for field in fields}
    return kind(**empty | {name: value for name, value in content.items() if name in field_names})


def _default_of(kind: Any) -> Any:
    return next(value for of, value in _DEFAULTS if issubclass(kind, of))


def _flow(content: dict[str, Any]) -> FlowReport:
    filters = tuple(content.get("filters", ()))
    return _with_defaults(FlowReport, content | {"filters": filters, "planned": _planned(content)})


def _stream(content: dict[str, Any]) -> StreamReport:
    pace, batching, training = (content.get(name) for name in ("pace", "batching", "training"))
    training = _numbers(training or {})
    latest = {name: tuple(training.get(name, ())) for name in ("rewards", "losses")}
    more = {
        "staleness": {int(age): rows for age, rows in content.get("staleness", {}).items()},
        "groups": _with_defaults(StreamGroups, content.get("groups", {})),
        "training": _with_defaults(TrainingReport, training | latest),
        "planned": _planned(content),
        "pace": None if pace is None else _with_defaults(Pace, pace),
        "batching": None if batching is None else _with_defaults(BatchingFacts, batching),
    }
    return _with_defaults(StreamReport, _numbers(content) | more)


def _numbers(content: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in content.items()}


def _event(content: dict[str, Any]) -> Event:
    return Event(
        ordinal=int(content["ordinal"]),
        at=float(content["at"]),
        repeats=int(content.get("repeats", 0)),
        **_record_fields(content),
    )


def _record(content: dict[str, Any]) -> Record:
    return Record(**_record_fields(content))


def _record_fields(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a record; earlier releases recorded a message instead of values."""
    return {
        "kind": RecordKind(content["kind"]),
        "subject": str(content["subject"]),
        "actor": str(content.get("actor", "")),
        "reason": str(content.get("reason", "")),
        "cause": str(content.get("cause", "")),
        "severity": Severity(content.get("severity", "info")),
        "values": content["values"] if "values" in content else {"text": str(content["message"])},
    }


def _plugin_kind(content: dict[str, Any]) -> PluginKind:
    return PluginKind(slot=PluginSlot(content["slot"]), kind=str(content["kind"]), summary=str(content["summary"]))


def _planned(content: dict[str, Any]) -> tuple[PlannedPlugins, ...]:
    """Returns the planned plugins, which earlier releases did not record."""
    return tuple(
        PlannedPlugins(**planned | {"slot": PluginSlot(planned["slot"]), "specs": tuple(planned["specs"])})
        for planned in content.get("planned", ())
    )


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
