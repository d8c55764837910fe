"""List of all runs: those of this machine and those of other machines that were followed, each once."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sqlmodel import Session, col, select

from astraflow.client.local_runs import LocalRun
from astraflow.runtime.folders.run_folders import changed_at
from astraflow.runtime.folders.run_metadata import RunMetadata
from web.database.tables import RunRecord
from web.history.run_summary import EMPTY_SUMMARY, PolicyFigures, RunSummary, summary
from web.requests.recipe_settings import read_settings, setting_text
from web.requests.run_lookup import ENDED, NOT_CONNECTED, RunIndex, state_of
from web.runs.details import record_metadata

RUNS_PER_PAGE = 50
MAX_FILTER_CHARS = 120

SETTING, METRIC = "setting:", "metric:"
"""Prefixes of the keys of further columns: settings of the recipe, and last values of metrics."""

STATES = {"": "any", "on": "active", "over": "ended"}
"""State filters with their labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run."""

    id: int | None
    """Id of its record; None for a run without recorded reports."""
    local: LocalRun | None
    """Its folder on this machine; None for a run elsewhere."""
    name: str
    recipe: str
    state: str
    owner: str
    """User who launched it; empty for a run of the terminal."""
    began_at: float
    duration_s: float | None
    final_message: str
    summary: RunSummary
    metadata: RunMetadata
    settings: Mapping[str, Any]
    """Values of its resolved recipe by key; empty when it is elsewhere."""

    @property
    def reason(self) -> str:
        """Reason of its launch; empty without one."""
        return self.local.launch.reason if self.local else ""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last step of its first policy."""
        return self.primary_policy.metrics if self.primary_policy else {}

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
    tag: str = ""
    recipe: str = ""
    star: str = ""
    """`1` for starred runs only."""
    sort: str = "started"
    order: str = "down"
    page: int = 1

    def query(self, **changes: Any) -> str:
        """Returns the query string of a link with some changes, including `?`; default values are left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | changes
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
    tags: tuple[str, ...]
    recipes: tuple[str, ...]
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
        tag=query.get("tag", "")[:MAX_FILTER_CHARS],
        recipe=query.get("recipe", "")[:MAX_FILTER_CHARS],
        star="1" if query.get("star") == "1" else "",
        sort=_sort(query.get("sort", "")),
        order="up" if query.get("order") == "up" else "down",
        page=int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 7 else 1,
    )


def _sort(key: str) -> str:
    is_column = key.startswith((SETTING, METRIC)) and len(key) <= MAX_FILTER_CHARS
    return key if key in SORTS or is_column else "started"


def column_value(entry: RunEntry, key: str) -> Any:
    """Returns the value of a further column: a setting or a metric; None without one."""
    kind, _, name = key.partition(":")
    return entry.settings.get(name) if f"{kind}:" == SETTING else entry.metrics.get(name)


def _sort_value(entry: RunEntry, key: str) -> Any:
    """Returns the value that a run is sorted by: numbers before texts; None for a run without one, which is last."""
    value = SORTS[key](entry) if key in SORTS else column_value(entry, key)
    if value is None or key in SORTS:
        return value
    is_number = isinstance(value, int | float)
    return (0, value, "") if is_number else (1, 0, setting_text(value))


async def runs_page(index: RunIndex, list_query: RunListQuery) -> RunsPage:
    """Returns the requested page; a page number beyond the last returns the last."""
    all_runs = await entries(index)
    matching = [entry for entry in all_runs if _matches(entry, list_query)]
    valued = [(_sort_value(entry, list_query.sort), entry) for entry in matching]
    measured = [(value, entry) for value, entry in valued if value is not None]
    measured.sort(key=lambda pair: (pair[0], pair[1].began_at), reverse=list_query.order == "down")
    ordered = [*(entry for _, entry in measured), *(entry for value, entry in valued if value is None)]
    pages = max(1, -(-len(ordered) // RUNS_PER_PAGE))
    page = min(list_query.page, pages)
    return RunsPage(
        query=list_query,
        entries=tuple(ordered[(page - 1) * RUNS_PER_PAGE : page * RUNS_PER_PAGE]),
        total=len(ordered),
        pages=pages,
        owners=tuple(sorted({entry.owner for entry in all_runs if entry.owner})),
        tags=tuple(sorted({tag for entry in all_runs for tag in entry.metadata.tags})),
        recipes=tuple(sorted({entry.recipe for entry in all_runs if entry.recipe})),
        has_runs=bool(all_runs),
    )


async def entries(index: RunIndex) -> list[RunEntry]:
    """Returns every run, the newest first, without those whose folder was removed. A run name that was started again
    has a record for each start."""
    runs = {run.name: run for run in await index.launcher.launches()}
    records = await asyncio.to_thread(_without_removed, await index.database.read(_records))
    summaries = await _summaries(index, records)
    settings = await asyncio.to_thread(_settings, index, list(runs.values()))
    run_entries = [
        _entry(
            record, runs.pop(record.name, None), summaries[record.id or 0], settings, is_heard=index.is_live(record.id)
        )
        for record in records
    ]
    run_entries += [_entry(None, run, EMPTY_SUMMARY, settings, is_heard=False) for run in runs.values()]
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


def _settings(index: RunIndex, runs: Sequence[LocalRun]) -> dict[str, dict[str, Any]]:
    """Returns the settings of the runs by name; those of an unchanged snapshot are cached."""
    by_run = {}
    for run in runs:
        file = run.folder.recipe_file
        key = (str(file), changed_at(file))
        settings = index.settings.get(key)
        if settings is None:
            settings = read_settings(file) or {}
            index.settings.put(key, settings)
        by_run[run.name] = settings
    return by_run


def _without_removed(records: Sequence[RunRecord]) -> list[RunRecord]:
    return [record for record in records if not record.folder or Path(record.folder).exists()]


def _entry(
    record: RunRecord | None,
    run: LocalRun | None,
    summary: RunSummary,
    settings: Mapping[str, Mapping[str, Any]],
    *,
    is_heard: bool,
) -> RunEntry:
    if record is not None:
        began_at, duration_s = record.started_at, record.last_at - record.started_at
        name, recipe = record.name, (run.recipe if run else "") or record.recipe
    elif run is not None:
        began_at, duration_s, name, recipe = run.started_at, None, run.name, run.recipe
    else:
        raise ValueError("cannot list a run: it has neither a record nor a folder")
    return RunEntry(
        id=record.id if record else None,
        local=run,
        name=name,
        recipe=recipe,
        state=state_of(run, folder=record.folder if record else "", is_heard=is_heard),
        owner=run.launch.actor if run else "",
        began_at=began_at,
        duration_s=duration_s,
        final_message=run.final_message if run else "",
        summary=summary,
        metadata=record_metadata(record, run),
        settings=settings.get(name, {}),
    )


def _matches(entry: RunEntry, list_query: RunListQuery) -> bool:
    if list_query.state and entry.is_over is not (list_query.state == "over"):
        return False
    if list_query.owner and entry.owner != list_query.owner:
        return False
    metadata = entry.metadata
    if (list_query.tag and list_query.tag not in metadata.tags) or (list_query.star and not metadata.is_starred):
        return False
    if list_query.recipe and entry.recipe != list_query.recipe:
        return False
    texts = (entry.name, entry.recipe, entry.owner, metadata.title, metadata.group, metadata.note, entry.reason)
    return list_query.text.casefold() in " ".join((*texts, *metadata.tags)).casefold()
