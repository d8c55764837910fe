"""The list of runs, as its page and its files have it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from web.present import formats
from web.reading.exports import Sheet
from web.reading.run_list import AWAY, ENDED, LIVE, RunEntry, RunsAsked, RunsPage

TONES = {LIVE: "good", "running": "good", "starting": "warn", ENDED: "off", AWAY: "off"}

HEADS = (
    ("name", "Run", False),
    ("state", "State", False),
    ("recipe", "Recipe", False),
    ("steps", "Step", True),
    ("reward", "Reward", True),
    ("wait", "Waits", True),
    ("dollars", "$", True),
    ("owner", "Owner", False),
    ("lasted", "Lasted", True),
    ("began", "Began", False),
)
"""What it is sorted by, what stands over it, whether it is a number."""

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
    "lasted_s",
    "began_unix_s",
    "last_word",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A column that can be sorted by."""

    label: str
    is_number: bool
    href: str
    sorted: str
    """`ascending`, `descending`, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCells:
    """One policy's figures."""

    policy: str
    steps: str
    reward: str
    wait: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One line."""

    id: int | None
    href: str
    launch: str
    name: str
    recipe: str
    state: str
    tone: str
    owner: str
    policies: tuple[PolicyCells, ...]
    dollars: str
    lasted: str
    began_at: float
    note: str
    simulated: bool


def rows(page: RunsPage) -> list[RunRow]:
    """The lines of a page."""
    return [_row(entry) for entry in page.entries]


def heads(asked: RunsAsked) -> list[Head]:
    """The columns; choosing the one that it is sorted by turns the order around."""
    return [_head(asked, name, label, is_number=is_number) for name, label, is_number in HEADS]


def sheet(page: RunsPage) -> Sheet:
    """What the page shows, with a row for each policy of a run."""
    return Sheet(name="runs", columns=COLUMNS, rows=[line for entry in page.entries for line in _lines(entry)])


def _row(entry: RunEntry) -> RunRow:
    href = f"/runs/{entry.id}" if entry.id is not None else f"/launches/{entry.launch}"
    return RunRow(
        id=entry.id,
        href=href,
        launch=entry.launch,
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
        lasted=formats.duration(entry.lasted_s),
        began_at=entry.began_at,
        note=formats.shortened(entry.last_word, at_most=120),
        simulated=entry.summary.simulated,
    )


def _head(asked: RunsAsked, name: str, label: str, *, is_number: bool) -> Head:
    is_chosen = asked.sort == name
    order = (
        ("up" if asked.order == "down" else "down") if is_chosen else "down" if is_number or name == "began" else "up"
    )
    return Head(
        label=label,
        is_number=is_number,
        href=f"/runs{asked.query(sort=name, order=order, page=1)}",
        sorted=("ascending" if asked.order == "up" else "descending") if is_chosen else "",
    )


def _lines(entry: RunEntry) -> Sequence[Sequence[Any]]:
    first = [entry.id, entry.name, entry.state, entry.recipe, entry.owner]
    last = [entry.summary.dollars, entry.lasted_s, entry.began_at, entry.last_word]
    figures = [[one.policy, one.steps, one.version, one.reward, one.wait] for one in entry.summary.policies]
    return [[*first, *middle, *last] for middle in figures or [["", None, None, None, None]]]
