"""All runs as one list: those that were recorded, and those that were launched from here, each once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlmodel import Session, col, select

from web.launching.launcher import Launch, LaunchState
from web.parts import Parts
from web.reading.run_pages import is_live
from web.reading.run_summary import NOTHING, PolicyFigures, RunSummary, summary
from web.tables import RunRecord

PAGE_RUNS = 50
LONGEST = 120

LIVE, ENDED, AWAY = "live", "ended", "out of sight"
STATES = {"": "any", "on": "going on", "over": "over"}
"""What can be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run."""

    id: int | None
    """Of its record; None for one of which no report was recorded."""
    launch: str
    """Its name, when it was launched from here; else empty."""
    name: str
    recipe: str
    state: str
    owner: str
    """Who launched it; empty when that was not from here."""
    began_at: float
    lasted_s: float | None
    last_word: str
    summary: RunSummary

    @property
    def is_over(self) -> bool:
        """Whether it does not go on, as far as is known here."""
        return self.state in (ENDED, AWAY)

    @property
    def first(self) -> PolicyFigures | None:
        """The policy that the list is sorted by."""
        return self.summary.policies[0] if self.summary.policies else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsAsked:
    """What an address asks for."""

    text: str = ""
    state: str = ""
    owner: str = ""
    sort: str = "began"
    order: str = "down"
    page: int = 1

    def query(self, **changes: Any) -> str:
        """The query of a link to the same with some changes, with its `?`; what is as always is left out."""
        wanted = {name: getattr(self, name) for name in ("text", "state", "owner", "sort", "order", "page")} | changes
        usual = RunsAsked()
        differing = {name: value for name, value in wanted.items() if value != getattr(usual, name)}
        return f"?{urlencode(differing)}" if differing else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPage:
    """A page of the list."""

    asked: RunsAsked
    entries: tuple[RunEntry, ...]
    total: int
    pages: int
    owners: tuple[str, ...]
    there_are: bool
    """Whether there is any run, whatever was asked for."""


SORTS: Mapping[str, Callable[[RunEntry], Any]] = {
    "name": lambda entry: entry.name,
    "state": lambda entry: entry.state,
    "recipe": lambda entry: entry.recipe,
    "owner": lambda entry: entry.owner or None,
    "steps": lambda entry: entry.first.steps if entry.first else None,
    "reward": lambda entry: entry.first.reward if entry.first else None,
    "wait": lambda entry: entry.first.wait if entry.first else None,
    "dollars": lambda entry: entry.summary.dollars,
    "lasted": lambda entry: entry.lasted_s,
    "began": lambda entry: entry.began_at,
}


def asked_from(query: Mapping[str, str]) -> RunsAsked:
    """What makes no sense in an address asks for nothing."""
    page = query.get("page", "")
    return RunsAsked(
        text=query.get("text", "").strip()[:LONGEST],
        state=query.get("state", "") if query.get("state", "") in STATES else "",
        owner=query.get("owner", "")[:LONGEST],
        sort=query.get("sort", "") if query.get("sort", "") in SORTS else "began",
        order="up" if query.get("order") == "up" else "down",
        page=int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 7 else 1,
    )


async def runs_page(parts: Parts, asked: RunsAsked) -> RunsPage:
    """The page that is asked for; the last one for a page beyond it."""
    everyone = await entries(parts)
    found = [entry for entry in everyone if _matches(entry, asked)]
    measured = [entry for entry in found if SORTS[asked.sort](entry) is not None]
    measured.sort(key=lambda entry: (SORTS[asked.sort](entry), entry.began_at), reverse=asked.order == "down")
    ordered = [*measured, *(entry for entry in found if SORTS[asked.sort](entry) is None)]
    pages = max(1, -(-len(ordered) // PAGE_RUNS))
    page = min(asked.page, pages)
    return RunsPage(
        asked=asked,
        entries=tuple(ordered[(page - 1) * PAGE_RUNS : page * PAGE_RUNS]),
        total=len(ordered),
        pages=pages,
        owners=tuple(sorted({entry.owner for entry in everyone if entry.owner})),
        there_are=bool(everyone),
    )


async def entries(parts: Parts) -> list[RunEntry]:
    """Every run once, the newest first. A name that began anew has a record for each beginning."""
    launches = {launch.name: launch for launch in await parts.launcher.launches()}
    records = await parts.database.look(_records)
    summaries = await _summaries(parts, records)
    found = [
        _entry(record, launches.pop(record.name, None), summaries[record.id or 0], is_heard=is_live(parts, record.id))
        for record in records
    ]
    found += [_entry(None, launch, NOTHING, is_heard=False) for launch in launches.values()]
    return sorted(found, key=lambda entry: -entry.began_at)


async def _summaries(parts: Parts, records: Sequence[RunRecord]) -> dict[int, RunSummary]:
    """By record. What ended does not change: it is read once."""
    kept = parts.shelf.summaries
    fresh = [record for record in records if kept.get((record.id or 0, record.last_sequence)) is None]
    if fresh:
        read = await parts.database.look(lambda session: [summary(session, record) for record in fresh])
        for record, found in zip(fresh, read, strict=True):
            kept.put((record.id or 0, record.last_sequence), found)
    return {record.id or 0: kept.get((record.id or 0, record.last_sequence)) or NOTHING for record in records}


def _records(session: Session) -> Sequence[RunRecord]:
    """Without their reports, of which there may be megabytes."""
    columns = [column for name, column in RunRecord.__table__.columns.items() if name != "report_json"]  # type: ignore[attr-defined] # SQLModel makes it
    rows = session.execute(select(*columns).order_by(col(RunRecord.last_at).desc())).mappings()
    return [RunRecord(**row, report_json="") for row in rows]


def _entry(record: RunRecord | None, launch: Launch | None, summary: RunSummary, *, is_heard: bool) -> RunEntry:
    if record is not None:
        began_at, lasted_s = record.started_at, record.last_at - record.started_at
        name, recipe = record.name, record.recipe or (launch.recipe if launch else "")
    elif launch is not None:
        began_at, lasted_s, name, recipe = launch.launched_at, None, launch.name, launch.recipe
    else:
        raise ValueError("a run is recorded or launched")
    return RunEntry(
        id=record.id if record else None,
        launch=launch.name if launch else "",
        name=name,
        recipe=recipe,
        state=_state(launch, is_heard=is_heard),
        owner=launch.actor if launch else "",
        began_at=began_at,
        lasted_s=lasted_s,
        last_word=launch.last_word if launch else "",
        summary=summary,
    )


def _state(launch: Launch | None, *, is_heard: bool) -> str:
    if is_heard:
        return LIVE
    if launch is None:
        return AWAY
    return ENDED if launch.state is LaunchState.ENDED else launch.state.value


def _matches(entry: RunEntry, asked: RunsAsked) -> bool:
    if asked.state and entry.is_over is not (asked.state == "over"):
        return False
    if asked.owner and entry.owner != asked.owner:
        return False
    return asked.text.casefold() in f"{entry.name} {entry.recipe} {entry.owner}".casefold()
