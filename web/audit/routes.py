"""`/audit`: the audit log, verification of its hash chain, and export."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from web.audit import queries as audit_queries
from web.audit.queries import PAGE_ENTRIES, RESULTS, AuditFilter, filter_from
from web.audit.views import TONES, as_csv, as_ndjson, chain_sentence, change_text, csv_header
from web.database.db import Database
from web.database.tables import MAX_ID, AuditEntry
from web.requests import responses
from web.requests.dependencies import AuditLogDep, DatabaseDep, PagesDep, RetentionDep
from web.security.roles import Permission, needs

router = APIRouter()


async def _view(
    request: Request,
    database: DatabaseDep,
    retention: RetentionDep,
    before: Annotated[int | None, Query(le=MAX_ID)] = None,
) -> dict[str, Any]:
    filters = filter_from(request.query_params)
    entries = await database.read(
        lambda session: audit_queries.page(session, filters, before=before, limit=PAGE_ENTRIES + 1)
    )
    actors, actions = await database.read(audit_queries.known)
    shown = entries[:PAGE_ENTRIES]
    return {
        "filters": filters,
        "entries": shown,
        "change_text": change_text,
        "chain_sentence": chain_sentence,
        "tones": TONES,
        "actors": actors,
        "actions": actions,
        "results": RESULTS,
        "older": shown[-1].sequence if len(entries) > PAGE_ENTRIES else None,
        "before": before,
        "newer": 0,
        "newer_query": urlencode({**dict(parse_qsl(filters.query)), "than": shown[0].sequence if shown else 0}),
        "days": await retention.days(),
    }


ViewDep = Annotated[dict[str, Any], Depends(_view)]


@router.get("/audit")
@needs(Permission.AUDIT)
async def show(request: Request, pages: PagesDep, view: ViewDep) -> Response:
    """Shows one page of the entries that match the filter, newest first."""
    return pages.page(request, "audit/page.html", page="audit", chain=None, **view)


@router.get("/audit/verify")
@needs(Permission.AUDIT)
async def verify(request: Request, pages: PagesDep, audit_log: AuditLogDep, view: ViewDep) -> Response:
    """Shows the page with the result of verifying the whole hash chain. Read only."""
    chain = await audit_log.verify()
    return pages.page(request, "audit/page.html", page="audit", chain=chain, **view)


@router.get("/audit/newer")
@needs(Permission.AUDIT)
async def newer(
    request: Request, pages: PagesDep, database: DatabaseDep, than: Annotated[int, Query(ge=0, le=MAX_ID)] = 0
) -> Response:
    """Returns the number of entries newer than sequence `than`, as a fragment."""
    filters = filter_from(request.query_params)
    count = await database.read(lambda session: audit_queries.newer(session, filters, than=than))
    fragment = pages.page(request, "_newer.html", newer=count, most=PAGE_ENTRIES, newest=_newest(filters.query))
    return responses.with_etag(request, fragment)


@router.get("/audit.ndjson")
@needs(Permission.AUDIT)
async def ndjson(request: Request, database: DatabaseDep) -> Response:
    """Exports the entries that match the filter, one JSON object per line."""
    return file_response(database, filter_from(request.query_params), "ndjson")


@router.get("/audit.csv")
@needs(Permission.AUDIT)
async def csv(request: Request, database: DatabaseDep) -> Response:
    """Exports the entries that match the filter as CSV."""
    return file_response(database, filter_from(request.query_params), "csv")


def _newest(query: str) -> str:
    return f"/audit?{query}" if query else "/audit"


def file_response(database: Database, filters: AuditFilter, ending: Literal["csv", "ndjson"]) -> Response:
    """Streams all entries that match the filter as a file."""
    is_csv = ending == "csv"
    render: Callable[[Sequence[AuditEntry]], str] = as_csv if is_csv else as_ndjson

    async def lines() -> AsyncIterator[str]:
        yield csv_header() if is_csv else ""
        async for batch in audit_queries.everything(database, filters):
            yield render(batch)

    headers = {"content-disposition": f'attachment; filename="astraflow-audit.{ending}"'}
    media_type = "text/csv; charset=utf-8" if is_csv else "application/x-ndjson"
    return StreamingResponse(lines(), media_type=media_type, headers=headers)
