"""`/palette` and `/search`: entries by name. `/keys`: keyboard shortcuts. `/menu/runs`: the run picker."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from web.database import run_records
from web.requests.dependencies import DatabaseDep, FleetDep, PagesDep, RecorderDep, StateDep, ViewerDep
from web.search.palette import (
    GENERAL,
    MAX_MATCHES,
    ROWS,
    PaletteEntry,
    entries,
    initial_entries,
    matching_entries,
    page_keys,
)
from web.security.roles import Permission, needs

router = APIRouter()

MENU_RUNS = 8

Words = Annotated[str, Query(max_length=200)]


async def _entries(state: StateDep, fleet: FleetDep, database: DatabaseDep, viewer: ViewerDep) -> list[PaletteEntry]:
    runs = await database.read(run_records.runs)
    return entries(viewer, state.report, runs, has_fleet=fleet.client is not None)


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
