"""`/palette` and `/search`: entries by name. `/keys`: keyboard shortcuts. `/menu/runs`: the run picker."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.launching import RecipeCard
from astraflow.runtime.folders.run_metadata import RunMetadata, read_metadata
from astraflow.runtime.logs import get_logger
from web.database import run_records
from web.database.tables import RunRecord
from web.requests.dependencies import DatabaseDep, FleetDep, LaunchesDep, PagesDep, RecorderDep, StateDep, ViewerDep
from web.requests.run_lookup import Launches
from web.search.actions import PaletteEntry, PaletteSources
from web.search.palette import (
    GENERAL,
    MAX_MATCHES,
    ROWS,
    entries,
    initial_entries,
    matching_entries,
    page_keys,
)
from web.security.roles import Permission, needs

router = APIRouter()

log = get_logger()

MENU_RUNS = 8
RECIPES_S = 0.15
"""Longest wait for the recipes. Seconds."""

Words = Annotated[str, Query(max_length=200)]


async def _entries(
    state: StateDep,
    fleet: FleetDep,
    database: DatabaseDep,
    recorder: RecorderDep,
    launches: LaunchesDep,
    viewer: ViewerDep,
) -> list[PaletteEntry]:
    runs = await database.read(run_records.runs)
    may_launch = viewer.may(Permission.OPERATE)
    sources = PaletteSources(
        report=state.report,
        runs=await asyncio.to_thread(lambda: [(run, _metadata(run)) for run in runs]),
        launches=await launches.launcher.launches() if may_launch else (),
        recipes=await _recipes(launches) if may_launch else (),
        has_fleet=fleet.client is not None,
        run_id=recorder.run_id,
    )
    return entries(viewer, sources)


async def _recipes(launches: Launches) -> tuple[RecipeCard, ...]:
    """Returns the recipes, none while they are read for the first time: the palette opens at once."""
    try:
        return await launches.catalogue.cards_within(RECIPES_S) or ()
    except AstraFlowError as problem:
        log.warning("recipes_not_listed", problem=str(problem))
        return ()


def _metadata(run: RunRecord) -> RunMetadata:
    """Returns the metadata of a run; empty without a readable file."""
    try:
        return read_metadata(Path(run.folder)) if run.folder else RunMetadata()
    except (InvalidInput, OSError) as problem:
        log.warning("metadata_not_read", run=run.name, problem=str(problem))
        return RunMetadata()


EntriesDep = Annotated[list[PaletteEntry], Depends(_entries)]


@router.get("/palette")
@needs(Permission.READ)
async def palette(all_entries: EntriesDep, q: Words = "") -> Response:
    """Returns the initial entries and whether these are all of them; with `q`, the entries that match its words."""
    listed = matching_entries(all_entries, q) if q.strip() else initial_entries(all_entries)
    is_whole = len(listed) == len(all_entries)
    return JSONResponse({"entries": [dataclasses.asdict(entry) for entry in listed], "is_whole": is_whole})


@router.get("/search")
@needs(Permission.READ)
async def search(request: Request, pages: PagesDep, all_entries: EntriesDep, q: Words = "") -> Response:
    """Shows the entries that match the words of `q`, as a page."""
    listed = [entry for entry in all_entries if entry.href]
    return pages.page(
        request,
        "search/page.html",
        page="search",
        search_text=q,
        entries=matching_entries(listed, q) if q.strip() else initial_entries(listed),
        most=MAX_MATCHES if q.strip() else 0,
    )


@router.get("/keys")
@needs(Permission.READ)
async def keys(request: Request, pages: PagesDep, viewer: ViewerDep) -> Response:
    """Shows the keyboard shortcuts."""
    sheets = (("Everywhere", GENERAL), ("Pages", page_keys(viewer)), ("Tables and charts", ROWS))
    return pages.page(request, "search/keys.html", page="keys", sheets=sheets)


@router.get("/menu/runs")
@needs(Permission.READ)
async def run_menu(
    request: Request, pages: PagesDep, state: StateDep, recorder: RecorderDep, database: DatabaseDep
) -> Response:
    """Returns the menu of the latest runs, the live run first."""
    records = (await database.read(run_records.runs))[:MENU_RUNS]
    live = recorder.run_id if not state.is_stale else None
    return pages.page(request, "search/_runs.html", records=records, live=live)
