"""`/palette` and `/search`: everything by its name. `/keys`: what each key does. `/menu/runs`: the run picker."""

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from web import queries
from web.accounts.viewer import Viewer
from web.door.roles import Need, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.present.keys import GENERAL, ROWS, page_keys
from web.present.palette import MOST_FOUND, Entry, entries, found, shortened
from web.present.shell import shell

router = APIRouter()

MENU_RUNS = 8

Words = Annotated[str, Query(max_length=200)]


@router.get("/palette")
@needs(Need.READ)
async def palette(parts: PartsOf, viewer: ViewerOf, q: Words = "") -> Response:
    """What is listed at first, and whether that is all; with `q`, those of everything that have its words."""
    everything = await _entries(parts, viewer)
    listed = found(everything, q) if q.strip() else shortened(everything)
    is_whole = len(listed) == len(everything)
    return JSONResponse({"entries": [dataclasses.asdict(entry) for entry in listed], "is_whole": is_whole})


@router.get("/search")
@needs(Need.READ)
async def search(request: Request, parts: PartsOf, viewer: ViewerOf, q: Words = "") -> Response:
    """Those that have the words of `q`, as a page."""
    listed = [entry for entry in await _entries(parts, viewer) if entry.href]
    return parts.pages.page(
        request,
        "search/page.html",
        page="search",
        shell=shell(parts.state, parts.settings),
        asked=q,
        entries=found(listed, q) if q.strip() else shortened(listed),
        most=MOST_FOUND if q.strip() else 0,
    )


@router.get("/keys")
@needs(Need.READ)
async def keys(request: Request, parts: PartsOf, viewer: ViewerOf) -> Response:
    """The sheet of keys."""
    sheets = (("Everywhere", GENERAL), ("Pages", page_keys(viewer)), ("Tables and charts", ROWS))
    return parts.pages.page(
        request, "search/keys.html", page="keys", shell=shell(parts.state, parts.settings), sheets=sheets
    )


@router.get("/menu/runs")
@needs(Need.READ)
async def run_menu(request: Request, parts: PartsOf) -> Response:
    """The latest runs, the live one first."""
    records = (await parts.database.look(queries.runs))[:MENU_RUNS]
    live = parts.recorder.run_id if not parts.state.is_stale else None
    return parts.pages.page(request, "search/_runs.html", records=records, live=live)


async def _entries(parts: Parts, viewer: Viewer) -> list[Entry]:
    runs = await parts.database.look(queries.runs)
    views = await parts.views.of(viewer.user_id)
    return entries(viewer, parts.state.report, runs, views, has_fleet=parts.fleet is not None)
