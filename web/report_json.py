"""The report as JSON: what `/api/report` answers and what is kept of a run; and the parts a page needs back."""

import dataclasses
import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from astraflow.contract.plugins import PlannedPlugins, Seam
from astraflow.contract.reports import FlowReport, Report, StreamReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReport:
    """What the page of a past run shows of its last report."""

    simulated: tuple[str, ...]
    flows: tuple[FlowReport, ...]
    streams: tuple[StreamReport, ...]


def report_to_json(report: Report) -> str:
    """The whole report as one JSON object; numbers that are not finite become null."""
    return json.dumps(plain(dataclasses.asdict(report)), ensure_ascii=False, separators=(",", ":"))


def report_from_json(text: str) -> RecordedReport:
    """Read back what `report_to_json` wrote."""
    content = json.loads(text)
    return RecordedReport(
        simulated=tuple(content["simulated"]),
        flows=tuple(_flow(flow) for flow in content["flows"]),
        streams=tuple(_stream(stream) for stream in content["streams"]),
    )


def _flow(content: dict[str, Any]) -> FlowReport:
    filters = tuple(content.get("filters", ()))
    return FlowReport(**content | {"filters": filters, "planned": _planned(content)})


def _stream(content: dict[str, Any]) -> StreamReport:
    numbers = {key: math.nan if value is None else value for key, value in content.items()}
    staleness = {int(age): rows for age, rows in content["staleness"].items()}
    rewards = tuple(content["rewards"])
    return StreamReport(**numbers | {"staleness": staleness, "rewards": rewards, "planned": _planned(content)})


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
