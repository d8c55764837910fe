"""List of all runs: recorded runs and runs that were launched from here, each once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlmodel import Session, col, select

from web.database.tables import RunRecord
from web.history.run_summary import EMPTY_SUMMARY, PolicyFigures, RunSummary, summary
from web.launcher.launcher import Launch, LaunchState
from web.requests.run_lookup import RunIndex

RUNS_PER_PAGE = 50
MAX_FILTER_CHARS = 120

LIVE, ENDED, NOT_CONNECTED = "live", "ended", "not connected"
STATES = {"": "any", "on": "active", "over": "ended"}
"""State filters with their labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run."""

    id: int | None
    """Id of its record; None for a run without recorded reports."""
    launch: str
    """Name of its launch; empty for a run that was not launched from here."""
    name: str
    recipe: str
    state: str
    owner: str
    """User who launched it; empty when it was not launched from here."""
    began_at: float
    duration_s: float | None
    final_message: str
    summary: RunSummary

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is not connected."""
        return self.state in (ENDED, NOT_CONNECTED)

    @property
    def primary_policy(self) -> PolicyFigures | None:
        """First policy, which the list is sorted by."""
        return self.summary.policies[0] if self.summary.policies else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListQuery:
    """Filter, order and page of the list, from the page's address."""

    text: str = ""
    state: str = ""
    owner: str = ""
    sort: str = "started"
    order: str = "down"
    page: int = 1

    def query(self, **changes: Any) -> str:
        """Returns the query string of a link with some changes, including `?`; default values are left out."""
        values = {name: getattr(self, name) for name in ("text", "state", "owner", "sort", "order", "page")} | changes
        defaults = RunListQuery()
        differing = {name: value for name, value in values.items() if value != getattr(defaults, name)}
        return f"?{urlencode(differing)}" if differing else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPage:
    """One page of the list."""

    query: RunListQuery
    entries: tuple[RunEntry, ...]
    total: int
    pages: int
    owners: tuple[str, ...]
    has_runs: bool
    """Whether any run exists, regardless of the filter."""


SORTS: Mapping[str, Callable[[RunEntry], Any]] = {
    "name": lambda entry: entry.name,
    "state": lambda entry: entry.state,
    "recipe": lambda entry: entry.recipe,
    "owner": lambda entry: entry.owner or None,
    "steps": lambda entry: entry.primary_policy.steps if entry.primary_policy else None,
    "reward": lambda entry: entry.primary_policy.reward if entry.primary_policy else None,
    "wait": lambda entry: entry.primary_policy.wait if entry.primary_policy else None,
    "dollars": lambda entry: entry.summary.dollars,
    "duration": lambda entry: entry.duration_s,
    "started": lambda entry: entry.began_at,
}


def run_list_query(query: Mapping[str, str]) -> RunListQuery:
    """Parses the query of an address; invalid values are replaced by defaults."""
    page = query.get("page", "")
    return RunListQuery(
        text=query.get("text", "").strip()[:MAX_FILTER_CHARS],
        state=query.get("state", "") if query.get("state", "") in STATES else "",
        owner=query.get("owner", "")[:MAX_FILTER_CHARS],
        sort=query.get("sort", "") if query.get("sort", "") in SORTS else "started",
        order="up" if query.get("order") == "up" else "down",
        page=int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 7 else 1,
    )


async def runs_page(index: RunIndex, list_query: RunListQuery) -> RunsPage:
    """Returns the requested page; a page number beyond the last returns the last."""
    all_runs = await entries(index)
    matching = [entry for entry in all_runs if _matches(entry, list_query)]
    measured = [entry for entry in matching if SORTS[list_query.sort](entry) is not None]
    measured.sort(key=lambda entry: (SORTS[list_query.sort](entry), entry.began_at), reverse=list_query.order == "down")
    ordered = [*measured, *(entry for entry in matching if SORTS[list_query.sort](entry) is None)]
    pages = max(1, -(-len(ordered) // RUNS_PER_PAGE))
    page = min(list_query.page, pages)
    return RunsPage(
        query=list_query,
        entries=tuple(ordered[(page - 1) * RUNS_PER_PAGE : page * RUNS_PER_PAGE]),
        total=len(ordered),
        pages=pages,
        owners=tuple(sorted({entry.owner for entry in all_runs if entry.owner})),
        has_runs=bool(all_runs),
    )


async def entries(index: RunIndex) -> list[RunEntry]:
    """Returns every run, the newest first. A run name that was started again has a record for each start."""
    launches = {launch.name: launch for launch in await index.launcher.launches()}
    records = await index.database.read(_records)
    summaries = await _summaries(index, records)
    run_entries = [
        _entry(record, launches.pop(record.name, None), summaries[record.id or 0], is_heard=index.is_live(record.id))
        for record in records
    ]
    run_entries += [_entry(None, launch, EMPTY_SUMMARY, is_heard=False) for launch in launches.values()]
    return sorted(run_entries, key=lambda entry: -entry.began_at)


async def _summaries(index: RunIndex, records: Sequence[RunRecord]) -> dict[int, RunSummary]:
    """Returns the summaries by record id; the summary of an unchanged record is cached."""
    cached = index.summaries
    fresh = [record for record in records if cached.get((record.id or 0, record.last_sequence)) is None]
    if fresh:
        read = await index.database.read(lambda session: [summary(session, record) for record in fresh])
        for record, result in zip(fresh, read, strict=True):
            cached.put((record.id or 0, record.last_sequence), result)
    return {record.id or 0: cached.get((record.id or 0, record.last_sequence)) or EMPTY_SUMMARY for record in records}


def _records(session: Session) -> Sequence[RunRecord]:
    """Returns the records without their reports, which may be megabytes."""
    columns = [column for name, column in RunRecord.__table__.columns.items() if name != "report_json"]  # type: ignore[attr-defined] # SQLModel makes it
    rows = session.execute(select(*columns).order_by(col(RunRecord.last_at).desc())).mappings()
    return [RunRecord(**row, report_json="") for row in rows]


def _entry(record: RunRecord | None, launch: Launch | None, summary: RunSummary, *, is_heard: bool) -> RunEntry:
    if record is not None:
        began_at, duration_s = record.started_at, record.last_at - record.started_at
        name, recipe = record.name, record.recipe or (launch.recipe if launch else "")
    elif launch is not None:
        began_at, duration_s, name, recipe = launch.launched_at, None, launch.name, launch.recipe
    else:
        raise ValueError("cannot list a run: it has neither a record nor a launch")
    return RunEntry(
        id=record.id if record else None,
        launch=launch.name if launch else "",
        name=name,
        recipe=recipe,
        state=_state(launch, is_heard=is_heard),
        owner=launch.actor if launch else "",
        began_at=began_at,
        duration_s=duration_s,
        final_message=launch.final_message if launch else "",
        summary=summary,
    )


def _state(launch: Launch | None, *, is_heard: bool) -> str:
    if is_heard:
        return LIVE
    if launch is None:
        return NOT_CONNECTED
    return ENDED if launch.state is LaunchState.ENDED else launch.state.value


def _matches(entry: RunEntry, list_query: RunListQuery) -> bool:
    if list_query.state and entry.is_over is not (list_query.state == "over"):
        return False
    if list_query.owner and entry.owner != list_query.owner:
        return False
    return list_query.text.casefold() in f"{entry.name} {entry.recipe} {entry.owner}".casefold()
