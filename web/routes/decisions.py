"""`/decisions`: who changed what, why, and from which figures."""

import re
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from web.door.roles import Need, needs
from web.parts import Parts, PartsOf
from web.present.decisions import KINDS, decision_groups, decision_row, decision_sheet, decision_view
from web.present.fleet import show_command
from web.present.shell import shell
from web.reading import again
from web.reading.decisions import (
    CURSOR,
    PAGE_ENTRIES,
    RULE_KINDS,
    SOURCES,
    Asked,
    DecisionPage,
    advice_at,
    decision,
    decision_page,
    newer_than,
    reached,
)
from web.reading.exports import Ending, sheet_answer

router = APIRouter()

LONGEST = 128


@router.get("/decisions")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """One page of what was asked for, newest first."""
    asked, before = _asked(request.query_params)
    page = await decision_page(parts, asked, before=before, limit=PAGE_ENTRIES)
    return parts.pages.page(request, "decisions/page.html", page="decisions", **_view(parts, asked, before, page))


@router.get("/decisions/newer")
@needs(Need.READ)
async def newer(request: Request, parts: PartsOf, than: Annotated[str, Query(max_length=LONGEST)] = "") -> Response:
    """How many there are that a page, whose newest ones `than` names, does not show."""
    asked, _ = _asked(request.query_params)
    count = await newer_than(parts, asked, than)
    part = parts.pages.page(request, "_newer.html", newer=count, most=PAGE_ENTRIES, newest=_newest(asked))
    return again.answered(request, part)


@router.get("/decisions.{ending}")
@needs(Need.READ)
async def take(request: Request, parts: PartsOf, ending: Ending) -> Response:
    """Exactly what the page with the same filters shows."""
    asked, before = _asked(request.query_params)
    page = await decision_page(parts, asked, before=before, limit=PAGE_ENTRIES)
    return sheet_answer(decision_sheet(page.entries), ending)


@router.get("/decisions/{entry_id}")
@needs(Need.READ)
async def show_one(request: Request, parts: PartsOf, entry_id: str) -> Response:
    """One decision with its figures: a page of its own, or a drawer of the table's."""
    try:
        entry = await decision(parts, entry_id)
    except AstraFlowError as refused:
        raise HTTPException(503, f"Its journal cannot be read now: {refused}") from refused
    if entry is None:
        raise HTTPException(404, "No such decision is in its journal (any more).")
    advice, problem = None, ""
    try:
        advice = await advice_at(parts, entry)
    except AstraFlowError as refused:
        problem = str(refused)
    return parts.pages.page(
        request,
        "decisions/decision.html",
        page="decisions",
        shell=shell(parts.state, parts.settings),
        view=decision_view(entry, advice, problem=problem),
    )


def _asked(query: QueryParams) -> tuple[Asked, str]:
    """What the address asks for. What cannot be understood asks for nothing."""
    words = {name: query.get(name, "").strip()[:LONGEST] for name in ("pool", "kind", "actor", "source", "text")}
    if words["source"] not in SOURCES:
        words["source"] = ""
    before = query.get("before", "")
    return Asked(**words), before if re.match(CURSOR, before) else ""


def _view(parts: Parts, asked: Asked, before: str, page: DecisionPage) -> dict[str, Any]:
    query = _query(asked)
    shown = query | ({"before": before} if before else {})
    status = parts.fleet_state.status
    return {
        "shell": shell(parts.state, parts.settings),
        "asked": asked,
        "groups": decision_groups([decision_row(entry) for entry in page.entries]),
        "pools": [pool.spec.id for pool in status.pools] if status else [],
        "kinds": {kind: word for kind, (word, _) in KINDS.items()},
        "sources": {"fleet": "people, programs, the fleet", "rule": "the rule"},
        "rule_kinds": RULE_KINDS,
        "problems": page.problems,
        "has_fleet": parts.fleet is not None,
        "show_command": show_command(parts.settings),
        "is_filtered": bool(query),
        "before": before,
        "newest": _newest(asked),
        "newer": 0,
        "newer_query": urlencode(query | {"than": reached(page.entries)}),
        "older": f"/decisions?{urlencode(query | {'before': page.older})}" if page.older else "",
        "files": f"?{urlencode(shown)}" if shown else "",
    }


def _query(asked: Asked) -> dict[str, str]:
    return {name: value for name in ("pool", "kind", "source", "actor", "text") if (value := getattr(asked, name))}


def _newest(asked: Asked) -> str:
    query = urlencode(_query(asked))
    return f"/decisions?{query}" if query else "/decisions"
