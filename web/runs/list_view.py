"""List of runs: headings of the table and download sheet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from web.components.downloads import Sheet
from web.requests.recipe_settings import setting_text
from web.runs.columns import column_label
from web.runs.list_queries import RunEntry, RunListQuery, RunsPage, column_value

HEADERS = (
    ("name", "Run", False),
    ("state", "State", False),
    ("recipe", "Recipe", False),
    ("steps", "Step", True),
    ("reward", "Reward", True),
    ("wait", "Wait", True),
    ("dollars", "$", True),
    ("owner", "Owner", False),
    ("duration", "Duration", True),
    ("started", "Started", False),
)
"""Sort key, heading, and whether the column is numeric."""

COLUMNS = (
    "id",
    "name",
    "state",
    "recipe",
    "owner",
    "policy",
    "steps",
    "version",
    "reward",
    "wait",
    "dollars",
    "duration_s",
    "started_unix_s",
    "final_message",
    "title",
    "tags",
    "group",
    "is_starred",
    "reason",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHeader:
    """A column that can be sorted by."""

    label: str
    is_number: bool
    href: str
    sorted: str
    """`ascending`, `descending`, or empty."""


def column_headers(list_query: RunListQuery, columns: Sequence[str]) -> list[ColumnHeader]:
    """Returns the column headings; the heading of the sorted column reverses the order."""
    headers = (*HEADERS, *((key, column_label(key), True) for key in columns))
    return [_head(list_query, name, label, is_number=is_number) for name, label, is_number in headers]


def sheet(page: RunsPage, columns: Sequence[str]) -> Sheet:
    """Returns the page as a sheet, with a row for each policy of a run and the further columns."""
    lines = [line for entry in page.entries for line in _lines(entry, columns)]
    return Sheet(name="runs", columns=(*COLUMNS, *columns), rows=lines)


def _head(list_query: RunListQuery, name: str, label: str, *, is_number: bool) -> ColumnHeader:
    is_chosen = list_query.sort == name
    order = (
        ("up" if list_query.order == "down" else "down")
        if is_chosen
        else "down"
        if is_number or name == "started"
        else "up"
    )
    return ColumnHeader(
        label=label,
        is_number=is_number,
        href=f"/runs{list_query.query(sort=name, order=order, page=1)}",
        sorted=("ascending" if list_query.order == "up" else "descending") if is_chosen else "",
    )


def _lines(entry: RunEntry, columns: Sequence[str]) -> Sequence[Sequence[Any]]:
    first = [entry.id, entry.name, entry.state, entry.recipe, entry.owner]
    metadata = entry.metadata
    last = [entry.summary.dollars, entry.duration_s, entry.began_at, entry.final_message]
    last += [metadata.title, " ".join(metadata.tags), metadata.group, metadata.is_starred, entry.reason]
    last += [_plain(column_value(entry, key)) for key in columns]
    figures = [
        [policy.policy, policy.steps, policy.version, policy.reward, policy.wait] for policy in entry.summary.policies
    ]
    return [[*first, *middle, *last] for middle in figures or [["", None, None, None, None]]]


def _plain(value: Any) -> Any:
    """Returns a value as a cell of a sheet."""
    return value if value is None or isinstance(value, str | int | float | bool) else setting_text(value)
