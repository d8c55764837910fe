"""List of runs: table rows and download sheet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from web.components import formats
from web.components.downloads import Sheet
from web.runs.list_queries import RunEntry, RunListQuery, RunsPage
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


def rows(page: RunsPage) -> list[RunRow]:
    """Returns the rows of a page."""
    return [_row(entry) for entry in page.entries]


def column_headers(list_query: RunListQuery) -> list[ColumnHeader]:
    """Returns the column headings; the heading of the sorted column reverses the order."""
    return [_head(list_query, name, label, is_number=is_number) for name, label, is_number in HEADERS]


def sheet(page: RunsPage) -> Sheet:
    """Returns the page as a sheet, with a row for each policy of a run."""
    return Sheet(name="runs", columns=COLUMNS, rows=[line for entry in page.entries for line in _lines(entry)])


def _row(entry: RunEntry) -> RunRow:
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


def _lines(entry: RunEntry) -> Sequence[Sequence[Any]]:
    first = [entry.id, entry.name, entry.state, entry.recipe, entry.owner]
    last = [entry.summary.dollars, entry.duration_s, entry.began_at, entry.final_message]
    figures = [
        [policy.policy, policy.steps, policy.version, policy.reward, policy.wait] for policy in entry.summary.policies
    ]
    return [[*first, *middle, *last] for middle in figures or [["", None, None, None, None]]]
