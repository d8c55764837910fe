"""`/decisions`: the journal of decisions: actor, change, reason, and input figures."""

import re
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.record_kinds import RecordKind
from web.components.downloads import FileFormat, sheet_response
from web.decisions.queries import (
    CURSOR_PATTERN,
    PAGE_ENTRIES,
    RULE_KINDS,
    SOURCES,
    DecisionFilter,
    DecisionPage,
    decision,
    decision_page,
    newer_count,
    newest_cursor,
    recommendation_at,
)
from web.decisions.views import decision_groups, decision_sheet, decision_view
from web.live.followed_fleet import FollowedFleet
from web.process_settings import Settings
from web.requests import responses
from web.requests.dependencies import ControlDep, FleetDep, PagesDep, SettingsDep, StateDep
from web.security.roles import Permission, needs

router = APIRouter()

MAX_FILTER_LENGTH = 128


@router.get("/decisions")
@needs(Permission.READ)
async def show(
    request: Request, pages: PagesDep, control: ControlDep, fleet: FleetDep, settings: SettingsDep
) -> Response:
    """Shows one page of the decisions that match the filter, newest first."""
    filters, before = _filter_from(request.query_params)
    page = await decision_page(control, fleet, filters, before=before, limit=PAGE_ENTRIES)
    return pages.page(request, "decisions/page.html", page="decisions", **_view(fleet, settings, filters, before, page))


@router.get("/decisions/newer")
@needs(Permission.READ)
async def newer(
    request: Request,
    pages: PagesDep,
    control: ControlDep,
    fleet: FleetDep,
    than: Annotated[str, Query(max_length=MAX_FILTER_LENGTH)] = "",
) -> Response:
    """Returns the number of decisions newer than the cursor `than`, as a fragment."""
    filters, _ = _filter_from(request.query_params)
    count = await newer_count(control, fleet, filters, than)
    fragment = pages.page(request, "_newer.html", newer=count, most=PAGE_ENTRIES, newest=_newest(filters))
    return responses.with_etag(request, fragment)


@router.get("/decisions.{ending}")
@needs(Permission.READ)
async def export(request: Request, control: ControlDep, fleet: FleetDep, ending: FileFormat) -> Response:
    """Returns the decisions that the page with the same filter shows, as a file."""
    filters, before = _filter_from(request.query_params)
    page = await decision_page(control, fleet, filters, before=before, limit=PAGE_ENTRIES)
    return sheet_response(decision_sheet(page.entries), ending)


@router.get("/decisions/{entry_id}")
@needs(Permission.READ)
async def show_item(
    request: Request, pages: PagesDep, state: StateDep, control: ControlDep, fleet: FleetDep, entry_id: str
) -> Response:
    """Shows one decision with its figures, as a page or in the table's drawer."""
    try:
        entry = await decision(control, fleet, entry_id)
    except AstraFlowError as refused:
        raise HTTPException(503, f"The journal cannot be read now: {refused}") from refused
    if entry is None:
        raise HTTPException(404, "No decision with this id in its journal; older entries are removed.")
    recommendation, problem = None, ""
    try:
        recommendation = await recommendation_at(state, control, entry)
    except AstraFlowError as refused:
        problem = str(refused)
    return pages.page(
        request, "decisions/decision.html", page="decisions", view=decision_view(entry, recommendation, problem=problem)
    )


def _filter_from(query: QueryParams) -> tuple[DecisionFilter, str]:
    """Parses the filter and the cursor from the query. Invalid values are ignored."""
    words = {
        name: query.get(name, "").strip()[:MAX_FILTER_LENGTH] for name in ("pool", "kind", "actor", "source", "text")
    }
    if words["source"] not in SOURCES:
        words["source"] = ""
    before = query.get("before", "")
    return DecisionFilter(**words), before if re.match(CURSOR_PATTERN, before) else ""


def _view(
    fleet: FollowedFleet, settings: Settings, filters: DecisionFilter, before: str, page: DecisionPage
) -> dict[str, Any]:
    query = _query(filters)
    shown = query | ({"before": before} if before else {})
    status = fleet.state.status
    return {
        "filters": filters,
        "groups": decision_groups(page.entries),
        "pools": [pool.spec.id for pool in status.pools] if status else [],
        "kinds": {kind.value: kind.label.lower() for kind in RecordKind if kind.is_decision or kind in RULE_KINDS},
        "sources": {"fleet": "people, programs, the fleet", "rule": "the sizing rule"},
        "rule_kinds": [kind.value for kind in RULE_KINDS],
        "problems": page.problems,
        "has_fleet": fleet.client is not None,
        "settings": settings,
        "is_filtered": bool(query),
        "before": before,
        "newest": _newest(filters),
        "newer": 0,
        "newer_query": urlencode(query | {"than": newest_cursor(page.entries)}),
        "older": f"/decisions?{urlencode(query | {'before': page.older})}" if page.older else "",
        "files": f"?{urlencode(shown)}" if shown else "",
    }


def _query(filters: DecisionFilter) -> dict[str, str]:
    return {name: value for name in ("pool", "kind", "source", "actor", "text") if (value := getattr(filters, name))}


def _newest(filters: DecisionFilter) -> str:
    query = urlencode(_query(filters))
    return f"/decisions?{query}" if query else "/decisions"
