"""`/api/v1/audit`, `/retention`: who did what, whether anybody tampered with it, and how long it is kept."""

import json
import re
from dataclasses import asdict
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic import BeforeValidator, ConfigDict, Field

from web.acts.fleet import answered_once
from web.audit import queries as audit_queries
from web.audit.queries import AuditFilter, filter_from
from web.audit.retention import LONGEST_DAYS, SHORTEST_DAYS
from web.door.roles import Need, needs
from web.parts import PartsOf, ViewerOf
from web.present.audit import as_row
from web.routes import audit as page
from web.routes.api.terms import LARGEST, PREFIX, SENT, Body, Filled, Key, Limit, Reason, Whole, refusals

router = APIRouter(prefix=PREFIX, tags=["audit"])

Word = Annotated[str, Query(max_length=200)]
Result = Annotated[Literal["", "done", "refused", "failed"], Query(description="Empty for any.")]
Text = Annotated[str, Query(max_length=200, description="Part of target, reason, before or after.")]


def _iso(value: object) -> object:
    """Only days as 2026-11-21: pydantic takes seconds since 1970 for a day as well, which the document does not say."""
    if isinstance(value, str) and not _DAY.fullmatch(value):
        raise ValueError("is a day, as in 2026-11-21")
    return value


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
Day = Annotated[date | None, BeforeValidator(_iso), Query(description="A day in UTC, included.")]


async def filter_of(
    actor: Word = "", action: Word = "", result: Result = "", text: Text = "", since: Day = None, until: Day = None
) -> AuditFilter:
    """What an address asks for, as the page reads it."""
    days = {"since": since.isoformat() if since else "", "until": until.isoformat() if until else ""}
    return filter_from({"actor": actor, "action": action, "result": result, "text": text, **days})


FilterOf = Annotated[AuditFilter, Depends(filter_of)]


class EntryAnswer(Filled):
    """One thing that somebody did, or was refused."""

    sequence: int
    at: float = Field(description="Unix seconds.")
    actor: str
    role: str
    via: str = Field(description="`session`, `token NAME`, `login`, or `astraflow` for the process itself.")
    came_from: str = Field(description="Address.")
    action: str
    target: str
    before: str = Field(description="JSON; empty for nothing.")
    after: str = Field(description="JSON; empty for nothing.")
    result: str = Field(description="`done`, `refused` or `failed`.")
    reason: str
    previous_hash: str
    entry_hash: str


class EntryList(Filled):
    """A page, newest first."""

    items: list[EntryAnswer]
    older: int | None = Field(description="`before` of the next page; null on the last.")


class VerdictAnswer(Filled):
    """What checking the whole chain found."""

    checked: int = Field(description="Entries.")
    first_sequence: int
    last_sequence: int
    last_hash: str
    is_whole: bool
    problem: str = Field(description="The first thing that does not hold; empty when everything does.")


class RetentionAsked(Body):
    """How long the audit is to be kept."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"days": 365, "reason": "as the company asks for"}]})

    days: Annotated[int, Field(ge=SHORTEST_DAYS, le=LONGEST_DAYS), Whole]
    reason: Reason


class RetentionAnswer(Filled):
    """How long the audit is kept."""

    days: int


@router.get("/audit", response_model=EntryList, responses=refusals())
@needs(Need.AUDIT)
async def entries(
    parts: PartsOf,
    asked: FilterOf,
    before: Annotated[int | None, Query(ge=0, le=LARGEST, description="`older` of the page before.")] = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Entries, newest first."""
    found = await parts.database.look(
        lambda session: audit_queries.page(session, asked, before=before, limit=limit + 1)
    )
    shown = found[:limit]
    older = shown[-1].sequence if len(found) > limit else None
    return {"items": [as_row(entry) for entry in shown], "older": older}


@router.get("/audit/verify", response_model=VerdictAnswer, responses=refusals())
@needs(Need.AUDIT)
async def verify(parts: PartsOf) -> dict[str, Any]:
    """Check the chain of entries from end to end. Nothing is changed by it."""
    verdict = await parts.trail.verify()
    return asdict(verdict) | {"is_whole": not verdict.problem}


@router.get(
    "/audit.{ending}",
    response_class=Response,
    responses={
        **refusals(),
        200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/csv", "application/x-ndjson")}},
    },
)
@needs(Need.AUDIT)
async def export(parts: PartsOf, asked: FilterOf, ending: Literal["csv", "ndjson"]) -> Response:
    """All entries that are asked for, as a file: CSV, or one JSON object a line."""
    return page.file_answer(parts, asked, ending)


@router.get("/retention", response_model=RetentionAnswer, responses=refusals())
@needs(Need.AUDIT)
async def retention(parts: PartsOf) -> dict[str, Any]:
    """How long the audit is kept."""
    return {"days": await parts.retention.days()}


@router.put("/retention", response_model=RetentionAnswer, responses=refusals(*SENT))
@needs(Need.ADMINISTER)
async def set_retention(parts: PartsOf, viewer: ViewerOf, body: RetentionAsked, key: Key) -> dict[str, Any]:
    """Keep the audit for so many days. What is older goes within a day, and an entry says so."""

    async def asked() -> str:
        await parts.retention.choose(body.days, by=viewer, reason=body.reason)
        return str(body.days)

    asked_for = json.dumps(["retention", body.model_dump()])
    return {"days": int(await answered_once(parts, viewer, asked, key=key, asked_for=asked_for))}
