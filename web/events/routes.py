"""`/events`: events of the run, filtered by kind; also as a file."""

from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.queries import EventPage, EventQuery
from web.components.downloads import FileFormat, sheet_response
from web.components.events import EVENT_TOPICS, KINDS, event_rows, event_sheet, single_event_rows
from web.requests.dependencies import ControlDep, PagesDep
from web.security.roles import Permission, needs

router = APIRouter()

PAGE_EVENTS = 100
MAX_FILTER_LENGTH = 128
MAX_ORDINAL_DIGITS = 16
"""Longest accepted event ordinal. Digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Filter of events; an empty field matches all."""

    about: str = ""
    kind: str = ""
    text: str = ""
    before: str = ""

    @property
    def filter(self) -> EventQuery:
        """Returns the query for dataflow."""
        kinds = (KINDS[self.kind],) if self.kind else EVENT_TOPICS[self.about][1] if self.about else ()
        return EventQuery(
            kinds=kinds, text=self.text, before=int(self.before) if self.before else None, limit=PAGE_EVENTS
        )

    def address(self, **other: str) -> str:
        """Returns the address of the list with this filter, changed by `other`."""
        values = {"about": self.about, "kind": self.kind, "text": self.text, "before": self.before} | other
        query = urlencode({name: value for name, value in values.items() if value})
        return f"/events?{query}" if query else "/events"


@router.get("/events")
@needs(Permission.READ)
async def show(request: Request, pages: PagesDep, control: ControlDep) -> Response:
    """Shows one page of the events that match the filter, newest first."""
    filters = _filter_from(request.query_params)
    event_page, problem = EventPage(events=(), has_older=False), ""
    try:
        event_page = await control.events(filters.filter)
    except AstraFlowError as refused:
        problem = str(refused)
    return pages.page(
        request,
        "events/page.html",
        page="overview",
        filters=filters,
        events=single_event_rows(event_page.events) if filters.kind else event_rows(event_page.events),
        abouts=[
            (name, label, filters.address(about=name, kind="", before="")) for name, (label, _) in EVENT_TOPICS.items()
        ],
        kinds=[(name, kind.label) for name, kind in KINDS.items()],
        problem=problem,
        older=filters.address(before=str(event_page.events[-1].ordinal)) if event_page.has_older else "",
        files=filters.address().removeprefix("/events"),
    )


@router.get("/events.{ending}")
@needs(Permission.READ)
async def export(request: Request, control: ControlDep, ending: FileFormat) -> Response:
    """Returns the events of the page with the same filter, one row per event, as a file."""
    try:
        page = await control.events(_filter_from(request.query_params).filter)
    except AstraFlowError as refused:
        raise HTTPException(503, f"Events cannot be read now: {refused}") from refused
    return sheet_response(event_sheet(page.events), ending)


def _filter_from(query: QueryParams) -> EventFilter:
    """Parses the filter from the query. Invalid values are ignored."""
    values = {
        name: query.get(name, "").replace("\0", "").strip()[:MAX_FILTER_LENGTH]
        for name in ("about", "kind", "text", "before")
    }
    if values["about"] not in EVENT_TOPICS:
        values["about"] = ""
    if values["kind"] not in KINDS:
        values["kind"] = ""
    before = values["before"]
    if not (before.isascii() and before.isdecimal() and len(before) < MAX_ORDINAL_DIGITS):
        values["before"] = ""
    return EventFilter(**values)
