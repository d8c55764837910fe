"""`/palette` and `/search`: entries by name. `/keys`: keyboard shortcuts. `/menu/runs`: the run picker."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from web.accounts.viewer import Viewer
from web.components.layout import layout
from web.database import run_records
from web.requests.context import RequestContext, RequestContextDep, ViewerDep
from web.search.keys import GENERAL, ROWS, page_keys
from web.search.palette import MAX_MATCHES, PaletteEntry, entries, initial_entries, matching_entries
from web.security.roles import Permission, needs

router = APIRouter()

MENU_RUNS = 8

Words = Annotated[str, Query(max_length=200)]


@router.get("/palette")
@needs(Permission.READ)
async def palette(context: RequestContextDep, viewer: ViewerDep, q: Words = "") -> Response:
    """Returns the initial entries and whether these are all of them; with `q`, the entries that match its words."""
    all_entries = await _entries(context, viewer)
    listed = matching_entries(all_entries, q) if q.strip() else initial_entries(all_entries)
    is_whole = len(listed) == len(all_entries)
    return JSONResponse({"entries": [dataclasses.asdict(entry) for entry in listed], "is_whole": is_whole})


@router.get("/search")
@needs(Permission.READ)
async def search(request: Request, context: RequestContextDep, viewer: ViewerDep, q: Words = "") -> Response:
    """Shows the entries that match the words of `q`, as a page."""
    listed = [entry for entry in await _entries(context, viewer) if entry.href]
    return context.pages.page(
        request,
        "search/page.html",
        page="search",
        layout=layout(context.state, context.settings),
        search_text=q,
        entries=matching_entries(listed, q) if q.strip() else initial_entries(listed),
        most=MAX_MATCHES if q.strip() else 0,
    )


@router.get("/keys")
@needs(Permission.READ)
async def keys(request: Request, context: RequestContextDep, viewer: ViewerDep) -> Response:
    """Shows the keyboard shortcuts."""
    sheets = (("Everywhere", GENERAL), ("Pages", page_keys(viewer)), ("Tables and charts", ROWS))
    return context.pages.page(
        request, "search/keys.html", page="keys", layout=layout(context.state, context.settings), sheets=sheets
    )


@router.get("/menu/runs")
@needs(Permission.READ)
async def run_menu(request: Request, context: RequestContextDep) -> Response:
    """Returns the menu of the latest runs, the live run first."""
    records = (await context.database.read(run_records.runs))[:MENU_RUNS]
    live = context.recorder.run_id if not context.state.is_stale else None
    return context.pages.page(request, "search/_runs.html", records=records, live=live)


async def _entries(context: RequestContext, viewer: Viewer) -> list[PaletteEntry]:
    runs = await context.database.read(run_records.runs)
    views = await context.views.of(viewer.user_id)
    return entries(viewer, context.state.report, runs, views, has_fleet=context.fleet is not None)
