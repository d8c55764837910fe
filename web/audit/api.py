"""`/api/v1/audit`, `/retention`: the audit log, its verification, and its retention."""

import re
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.responses import Response
from pydantic import BeforeValidator, ConfigDict, Field

from web.audit import queries as audit_queries
from web.audit import routes as page
from web.audit.queries import AuditFilter, filter_from
from web.database.tables import MAX_ID, AuditEntry
from web.requests.dependencies import AuditLogDep, DatabaseDep, RetentionDep
from web.rest.changes import ChangeDep
from web.rest.common import ApiRouter, ItemList, Limit, Reason, RequestBody, ResponseModel, WholeNumber
from web.rest.contract_models import fields_of
from web.security.audit_log import ChainCheck
from web.security.retention import MAX_DAYS, MIN_DAYS
from web.security.roles import Permission, needs

router = ApiRouter(tags=["audit"])

Word = Annotated[str, Query(max_length=200)]
Result = Annotated[Literal["", "done", "refused", "failed", "unknown"], Query(description="Empty for any.")]
Text = Annotated[str, Query(max_length=200, description="Part of target, reason, before or after.")]


def _iso(value: object) -> object:
    """Refuses days not written as 2026-11-21; pydantic would also accept Unix seconds, which is undocumented."""
    if isinstance(value, str) and not _DAY.fullmatch(value):
        raise ValueError("cannot read the day: not in the form YYYY-MM-DD; write it as 2026-11-21")
    return value


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
Day = Annotated[date | None, BeforeValidator(_iso), Query(description="Day in UTC, inclusive.")]


async def filter_of(
    actor: Word = "", action: Word = "", result: Result = "", text: Text = "", since: Day = None, until: Day = None
) -> AuditFilter:
    """Returns the filter from the query, parsed as by the audit page."""
    days = {"since": since.isoformat() if since else "", "until": until.isoformat() if until else ""}
    return filter_from({"actor": actor, "action": action, "result": result, "text": text, **days})


FilterOf = Annotated[AuditFilter, Depends(filter_of)]


@fields_of(AuditEntry)
class AuditEntryResponse(ResponseModel):
    """Entry of the audit log: an action that was done, refused or failed."""


class AuditEntryList(ItemList[AuditEntryResponse]):
    """Page of entries, newest first."""

    older: int | None = Field(description="`before` of the next page; null on the last.")


@fields_of(ChainCheck)
class AuditVerificationResponse(ResponseModel):
    """Result of verifying the whole hash chain."""

    is_whole: bool = Field(description="Whether the chain is intact.")


class RetentionRequest(RequestBody):
    """New retention of the audit log."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"days": 365, "reason": "company policy"}]})

    days: Annotated[int, Field(ge=MIN_DAYS, le=MAX_DAYS, description="Days for which entries are kept."), WholeNumber]
    reason: Reason


class RetentionResponse(ResponseModel):
    """Retention of the audit log."""

    days: int = Field(description="Days for which entries are kept.")


@router.get("/audit", response_model=AuditEntryList)
@needs(Permission.AUDIT)
async def entries(
    database: DatabaseDep,
    filters: FilterOf,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID, description="`older` of the previous page.")] = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Lists entries, newest first."""
    page_entries = await database.read(
        lambda session: audit_queries.page(session, filters, before=before, limit=limit + 1)
    )
    shown = page_entries[:limit]
    older = shown[-1].sequence if len(page_entries) > limit else None
    return {"items": shown, "older": older}


@router.get("/audit/verify", response_model=AuditVerificationResponse)
@needs(Permission.AUDIT)
async def verify(audit_log: AuditLogDep) -> dict[str, Any]:
    """Verifies the hash chain of all entries. Read only."""
    verdict = await audit_log.verify()
    return AuditVerificationResponse.values_of(verdict, is_whole=not verdict.problem)


@router.get(
    "/audit.{ending}",
    response_class=Response,
    responses={
        200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/csv", "application/x-ndjson")}}
    },
)
@needs(Permission.AUDIT)
async def export(database: DatabaseDep, filters: FilterOf, ending: Literal["csv", "ndjson"]) -> Response:
    """Exports the entries that match the filter as CSV, or as one JSON object per line."""
    return page.file_response(database, filters, ending)


@router.get("/retention", response_model=RetentionResponse)
@needs(Permission.AUDIT)
async def retention(retention: RetentionDep) -> dict[str, Any]:
    """Returns the retention of the audit log."""
    return {"days": await retention.days()}


@router.put("/retention", response_model=RetentionResponse)
@needs(Permission.ADMINISTER)
async def set_retention(change: ChangeDep, retention: RetentionDep, body: RetentionRequest) -> dict[str, Any]:
    """Sets the retention. Older entries are deleted within a day, which is itself recorded in the log."""
    await change.once(lambda: retention.set_days(body.days, by=change.by, reason=body.reason))
    return {"days": body.days}
