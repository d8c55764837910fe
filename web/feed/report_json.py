"""The report as JSON: what `/api/v1/report` answers and what is kept of a run; and the parts a page needs back."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, get_origin

from astraflow.contract.errors import InvalidInput
from astraflow.contract.plugins import PlannedPlugins, Seam
from astraflow.contract.reports import Event, FlowReport, Report, StreamReport
from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()

_EMPTY: tuple[tuple[type, Any], ...] = (
    (bool, False),
    (int, 0),
    (float, math.nan),
    (str, ""),
    (Mapping, {}),
    (tuple, ()),
)
"""What stands for a field that was not recorded, by its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReport:
    """What the page of a past run shows of its last report."""

    simulated: tuple[str, ...]
    flows: tuple[FlowReport, ...]
    streams: tuple[StreamReport, ...]
    events: tuple[Event, ...] = ()


RECORDED_NODES = 100
"""Of a larger fleet no nodes are recorded with the report: their numbers are in the history."""


def recorded_json(report: Report) -> str:
    """What is kept of a run's last report: without nodes when they are many, since it is written every two seconds."""
    small = report if len(report.nodes) <= RECORDED_NODES else dataclasses.replace(report, nodes=())
    return report_to_json(small)


def report_to_json(report: Report) -> str:
    """The whole report as one JSON object; numbers that are not finite become null."""
    return json.dumps(plain(dataclasses.asdict(report)), ensure_ascii=False, separators=(",", ":"))


def report_from_json(text: str) -> RecordedReport:
    """Read back what `report_to_json` wrote."""
    try:
        content = json.loads(text)
    except (RecursionError, ValueError):
        content = {}
    content = content if isinstance(content, dict) else {}
    return RecordedReport(
        simulated=tuple(map(str, content.get("simulated") or ())),
        flows=_readable(_flow, content.get("flows")),
        streams=_readable(_stream, content.get("streams")),
        events=_readable(lambda one: _filled(Event, one), content.get("events")),
    )


def _readable(read: Callable[[dict[str, Any]], T], found: Any) -> tuple[T, ...]:
    """What can be read of a list: an earlier release, or a later one, recorded other tables."""
    tables: list[T] = []
    for one in found if isinstance(found, list) else ():
        try:
            tables.append(read(one))
        except (ArithmeticError, AttributeError, InvalidInput, LookupError, TypeError, ValueError) as problem:
            log.warning("recorded_table_not_read", problem=f"{type(problem).__name__}: {problem}")
    return tuple(tables)


def _filled(kind: type[T], content: dict[str, Any]) -> T:
    """The dataclass, with nothing for what was not recorded and without what it does not know."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # T is a dataclass
    empty = {
        field.name: _nothing(get_origin(field.type) or field.type)
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    known = {field.name for field in fields}
    return kind(**empty | {name: value for name, value in content.items() if name in known})


def _nothing(kind: Any) -> Any:
    return next(value for of, value in _EMPTY if issubclass(kind, of))


def _flow(content: dict[str, Any]) -> FlowReport:
    filters = tuple(content.get("filters", ()))
    return _filled(FlowReport, content | {"filters": filters, "planned": _planned(content)})


def _stream(content: dict[str, Any]) -> StreamReport:
    numbers = {key: math.nan if value is None else value for key, value in content.items()}
    staleness = {int(age): rows for age, rows in content.get("staleness", {}).items()}
    rewards = tuple(content.get("rewards", ()))
    more = {"staleness": staleness, "rewards": rewards, "planned": _planned(content)}
    return _filled(StreamReport, numbers | more)


def _planned(content: dict[str, Any]) -> tuple[PlannedPlugins, ...]:
    """Absent from what earlier releases recorded."""
    return tuple(
        PlannedPlugins(**one | {"seam": Seam(one["seam"]), "specs": tuple(one["specs"])})
        for one in content.get("planned", ())
    )


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
