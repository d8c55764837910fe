"""List of runs: table rows and download sheet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from web.components import formats
from web.components.downloads import Sheet
from web.requests.recipe_settings import setting_text
from web.runs.columns import cell_text, column_label
from web.runs.list_queries import RunEntry, RunListQuery, RunsPage, column_value
from web.runs.views import TONES

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCells:
    """Figures of one policy."""

    policy: str
    steps: str
    reward: str
    wait: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One line of the list."""

    id: int | None
    href: str
    name: str
    recipe: str
    state: str
    tone: str
    owner: str
    policies: tuple[PolicyCells, ...]
    dollars: str
    duration: str
    began_at: float
    note: str
    simulated: bool
    title: str
    tags: tuple[str, ...]
    group: str
    is_starred: bool
    reason: str
    cells: tuple[str, ...]
    """Texts of the further columns."""


def rows(page: RunsPage, columns: Sequence[str]) -> list[RunRow]:
    """Returns the rows of a page. columns: keys of its further columns."""
    return [_row(entry, columns) for entry in page.entries]


def column_headers(list_query: RunListQuery, columns: Sequence[str]) -> list[ColumnHeader]:
    """Returns the column headings; the heading of the sorted column reverses the order."""
    headers = (*HEADERS, *((key, column_label(key), True) for key in columns))
    return [_head(list_query, name, label, is_number=is_number) for name, label, is_number in headers]


def sheet(page: RunsPage, columns: Sequence[str]) -> Sheet:
    """Returns the page as a sheet, with a row for each policy of a run and the further columns."""
    lines = [line for entry in page.entries for line in _lines(entry, columns)]
    return Sheet(name="runs", columns=(*COLUMNS, *columns), rows=lines)


def _row(entry: RunEntry, columns: Sequence[str]) -> RunRow:
    href = f"/runs/{entry.id}" if entry.id is not None else f"/launches/{entry.name}"
    return RunRow(
        id=entry.id,
        href=href,
        name=entry.name,
        recipe=entry.recipe or formats.MISSING,
        state=entry.state,
        tone=TONES.get(entry.state, ""),
        owner=entry.owner or formats.MISSING,
        policies=tuple(
            PolicyCells(
                policy=figures.policy,
                steps=formats.count(figures.steps),
                reward=formats.reward(figures.reward),
                wait=formats.percent(figures.wait),
            )
            for figures in entry.summary.policies
        ),
        dollars=formats.dollars(entry.summary.dollars),
        duration=formats.duration(entry.duration_s),
        began_at=entry.began_at,
        note=formats.shortened(entry.final_message, at_most=120),
        simulated=entry.summary.simulated,
        title=entry.metadata.title,
        tags=entry.metadata.tags,
        group=entry.metadata.group,
        is_starred=entry.metadata.is_starred,
        reason=formats.shortened(entry.reason, at_most=120),
        cells=tuple(cell_text(entry, key) for key in columns),
    )


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
