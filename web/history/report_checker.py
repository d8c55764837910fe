"""Checks reports before pages show them: finite numbers and bounded text, from live and recorded runs.

Nodes, trainers or foreign run folders control the content of a report. No content ends this process.
"""

import asyncio
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports.report import NodeReport, Report, StreamReport, TrainingReport
from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.contract.weight_reports import LinkReport

T = TypeVar("T")

MAX_TEXT = 4096
"""Maximum characters of a text; the rest is cut off."""

MAX_ENTRIES = 10_000
"""Maximum entries of a list or table of a report, except nodes; the rest is dropped."""

MAX_INT = 2**53
"""Largest integer that is exact in browsers and fits SQLite."""

LATEST_AT = 4e9
"""Unix seconds."""

NODES_PER_TURN = 250
"""Nodes checked between two turns of the event loop: about a millisecond."""


class ReportChecker:
    """Makes reports safe to show. Nodes that are shared between reports are checked once."""

    def __init__(self) -> None:
        self._seen: tuple[NodeReport, ...] = ()
        self._nodes: tuple[NodeReport, ...] = ()

    async def check_nodes(self, nodes: tuple[NodeReport, ...]) -> None:
        """Checks nodes in pieces, before `checked` is called with their report; other tasks run in between."""
        if nodes is self._seen:
            return
        checked: list[NodeReport] = []
        for start in range(0, len(nodes), NODES_PER_TURN):
            if checked:
                await asyncio.sleep(0)
            checked += map(_checked_node, nodes[start : start + NODES_PER_TURN])
        self._seen, self._nodes = nodes, _same_if_equal(checked, nodes)

    def checked(self, report: Report) -> Report:
        """Returns the report with invalid values replaced. Raises: InvalidInput for an invalid time or sequence."""
        if not 0 <= report.at <= LATEST_AT or not 0 <= report.sequence <= MAX_INT:
            raise InvalidInput(
                f"cannot show a report with time {report.at} and sequence {report.sequence}: out of range; skip it",
                code="history.invalid_report",
            )
        if report.nodes is not self._seen:
            nodes = list(map(_checked_node, report.nodes))
            self._seen, self._nodes = report.nodes, _same_if_equal(nodes, report.nodes)
        return _clean_parts(report, nodes=self._nodes)


def checked_step(step: TrainingStep) -> TrainingStep:
    """Returns the step with invalid values replaced. Raises: InvalidInput for an invalid time."""
    if not 0 <= step.at <= LATEST_AT:
        raise InvalidInput(
            f"cannot show step {step.step} with time {step.at}: out of range; skip it", code="history.invalid_step"
        )
    return _clean(step, 0.0)


def _checked_node(node: NodeReport) -> NodeReport:
    return node if _is_plain(node) else _clean(node, 0.0)


def _same_if_equal(checked: Sequence[NodeReport], nodes: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
    """Returns the nodes themselves if none was replaced."""
    return nodes if all(map(_is, checked, nodes)) else tuple(checked)


def _is_plain(node: NodeReport) -> bool:
    """True if a node needs no cleaning. Sums its numbers once: thousands of nodes are checked each second."""
    facts = node.facts
    total = (
        node.joined_at + node.heartbeat_age_s + node.episodes_per_s + node.tokens_per_s + facts.price_per_hour
        + sum(node.counters.values()) + sum(node.gauges.values())
    )  # fmt: skip
    text = "".join((facts.name, facts.region, facts.engine, facts.hardware, facts.software, *node.errors))
    return (
        math.isfinite(total)
        and node.cause is None
        and all(map(_is_plain_link, node.links))
        and len(text) <= MAX_TEXT
        and "\0" not in text
        and max(abs(node.leased), abs(facts.capacity), *map(abs, node.versions.values()), 0) <= MAX_INT
    )


_LINK_NUMBERS = attrgetter(*(field.name for field in dataclasses.fields(LinkReport) if field.name != "source"))


def _is_plain_link(link: LinkReport) -> bool:
    """True if a link needs no cleaning: no number is negative, and so none is larger than their sum."""
    numbers = _LINK_NUMBERS(link)
    return len(link.source) <= MAX_TEXT and "\0" not in link.source and sum(numbers) <= MAX_INT and min(numbers) >= 0


def _clean_parts(report: Report, *, nodes: tuple[NodeReport, ...]) -> Report:
    changes: dict[str, Any] = {"nodes": nodes} if nodes is not report.nodes else {}
    for name in _field_names(Report):
        if name == "nodes":
            continue
        value = getattr(report, name)
        cleaned = _clean(value, 0.0)
        if cleaned is not value:
            changes[name] = cleaned
    return dataclasses.replace(report, **changes) if changes else report


def _clean(value: T, missing: float) -> T:
    """Returns the value itself if nothing must be replaced. missing: replaces numbers that are not finite."""
    return _cleaner(type(value))(value, missing)  # type: ignore[no-any-return, arg-type]  # mypy does not know that types are hashable


@cache
def _cleaner(kind: type) -> Callable[[Any, float], Any]:
    """Returns the function that cleans values of a type: a report has hundreds of them, of few types."""
    if issubclass(kind, str):
        return lambda text, _: text if len(text) <= MAX_TEXT and "\0" not in text else _clean_text(text)
    if issubclass(kind, float):
        return lambda number, missing: number if math.isfinite(number) else missing
    if issubclass(kind, int):
        return lambda number, _: number if abs(number) <= MAX_INT else MAX_INT
    if issubclass(kind, tuple | list):
        return _clean_sequence
    if issubclass(kind, Mapping):
        return lambda table, _: _clean_mapping(table)
    if dataclasses.is_dataclass(kind):
        return lambda record, _: _clean_fields(record)
    return lambda value, _: value


def _clean_text(text: str) -> str:
    """Returns a text of the same type, such as `PolicyId`, or a plain `str` if its rule refuses the text."""
    short = text[:MAX_TEXT].replace("\0", "\N{REPLACEMENT CHARACTER}")
    try:
        return type(text)(short)
    except (InvalidInput, ValueError):
        return short


def _clean_sequence(value: Any, missing: float) -> Any:
    items = [_clean(item, missing) for item in value[:MAX_ENTRIES]]
    if len(items) == len(value) and all(map(_is, items, value)):
        return value
    return type(value)(items)


def _clean_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns the table without numbers that are not finite, which mean that nothing was measured."""
    finite_items = [(key, item) for key, item in value.items() if not isinstance(item, float) or math.isfinite(item)]
    cleaned = [(_clean(key, 0.0), _clean(item, 0.0)) for key, item in finite_items[:MAX_ENTRIES]]
    is_same = len(cleaned) == len(value) and all(
        key is old and item is before for (key, item), (old, before) in zip(cleaned, value.items(), strict=True)
    )
    return value if is_same else dict(cleaned)


def _clean_fields(value: Any) -> Any:
    missing = math.nan if isinstance(value, StreamReport | TrainingReport) else 0.0
    changes = {}
    for name in _field_names(type(value)):  # type: ignore[arg-type]  # a type is hashable
        before = getattr(value, name)
        after = _clean(before, missing)
        if after is not before:
            changes[name] = after
    return dataclasses.replace(value, **changes) if changes else value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _is(first: object, second: object) -> bool:
    return first is second
