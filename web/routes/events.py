"""`/events`: what happened in the run, by kind; the same as a file."""

from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.lookups import EventPage, EventQuery
from web.door.roles import Need, needs
from web.parts import PartsOf
from web.present.events import ABOUT, KINDS, event_rows, event_sheet, plain_rows, word
from web.present.shell import shell
from web.reading.exports import Ending, sheet_answer

router = APIRouter()

PAGE_EVENTS = 100
LONGEST = 128
LONGEST_ORDINAL = 16
"""Digits; what is longer is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which events; empty means any."""

    about: str = ""
    kind: str = ""
    text: str = ""
    before: str = ""

    @property
    def filter(self) -> EventQuery:
        """The same as dataflow is asked."""
        kinds = (self.kind,) if self.kind else ABOUT[self.about][1] if self.about else ()
        return EventQuery(
            kinds=kinds, text=self.text, before=int(self.before) if self.before else None, limit=PAGE_EVENTS
        )

    def address(self, **other: str) -> str:
        """Of the same list, or one that differs so."""
        values = {"about": self.about, "kind": self.kind, "text": self.text, "before": self.before} | other
        query = urlencode({name: value for name, value in values.items() if value})
        return f"/events?{query}" if query else "/events"


@router.get("/events")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """One page of what was asked for, newest first."""
    asked = _asked(request.query_params)
    found, problem = EventPage(events=(), has_older=False), ""
    try:
        found = await parts.control.events(asked.filter)
    except AstraFlowError as refused:
        problem = str(refused)
    return parts.pages.page(
        request,
        "overview/events.html",
        page="overview",
        shell=shell(parts.state, parts.settings),
        asked=asked,
        events=plain_rows(found.events) if asked.kind else event_rows(found.events),
        abouts=[(name, label, asked.address(about=name, kind="", before="")) for name, (label, _) in ABOUT.items()],
        kinds=[(kind, word(kind)) for kind in KINDS],
        problem=problem,
        older=asked.address(before=str(found.events[-1].ordinal)) if found.has_older else "",
        files=asked.address().removeprefix("/events"),
    )


@router.get("/events.{ending}")
@needs(Need.READ)
async def take(request: Request, parts: PartsOf, ending: Ending) -> Response:
    """The events behind the page with the same filters, each by itself."""
    try:
        page = await parts.control.events(_asked(request.query_params).filter)
    except AstraFlowError as refused:
        raise HTTPException(503, f"Events cannot be read now: {refused}") from refused
    return sheet_answer(event_sheet(page.events), ending)


def _asked(query: QueryParams) -> Asked:
    """What the address asks for. What cannot be understood asks for nothing."""
    given = {
        name: query.get(name, "").replace("\0", "").strip()[:LONGEST] for name in ("about", "kind", "text", "before")
    }
    if given["about"] not in ABOUT:
        given["about"] = ""
    before = given["before"]
    if not (before.isascii() and before.isdecimal() and len(before) < LONGEST_ORDINAL):
        given["before"] = ""
    return Asked(**given)
