"""`/audit`: who did what; checking that nobody tampered with it; taking it away as a file."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from web.audit import queries as audit_queries
from web.audit.queries import PAGE_ENTRIES, RESULTS, AuditFilter, filter_from
from web.door.roles import Need, needs
from web.parts import Parts, PartsOf
from web.present.audit import ChainView, as_csv, as_ndjson, audit_row, chain_view, csv_head
from web.present.shell import shell
from web.reading import again
from web.tables import AuditEntry

router = APIRouter()


@router.get("/audit")
@needs(Need.AUDIT)
async def show(request: Request, parts: PartsOf, before: Annotated[int | None, Query(le=2**53)] = None) -> Response:
    """One page of what was asked for, newest first."""
    return await _page(request, parts, before=before, chain=None)


@router.get("/audit/verify")
@needs(Need.AUDIT)
async def verify(request: Request, parts: PartsOf) -> Response:
    """The page, with what checking the whole chain found. Nothing is changed by it."""
    return await _page(request, parts, before=None, chain=chain_view(await parts.trail.verify()))


@router.get("/audit/newer")
@needs(Need.AUDIT)
async def newer(request: Request, parts: PartsOf, than: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
    """How many entries there are that a page, whose newest is `than`, does not show."""
    asked = filter_from(request.query_params)
    count = await parts.database.look(lambda session: audit_queries.newer(session, asked, than=than))
    part = parts.pages.page(request, "_newer.html", newer=count, most=PAGE_ENTRIES, newest=_newest(asked.query))
    return again.answered(request, part)


@router.get("/audit.ndjson")
@needs(Need.AUDIT)
async def ndjson(request: Request, parts: PartsOf) -> Response:
    """Everything that is filtered, one JSON object a line."""
    return file_answer(parts, filter_from(request.query_params), "ndjson")


@router.get("/audit.csv")
@needs(Need.AUDIT)
async def csv(request: Request, parts: PartsOf) -> Response:
    """The same as CSV."""
    return file_answer(parts, filter_from(request.query_params), "csv")


async def _page(request: Request, parts: Parts, *, before: int | None, chain: ChainView | None) -> Response:
    asked = filter_from(request.query_params)
    entries = await parts.database.look(
        lambda session: audit_queries.page(session, asked, before=before, limit=PAGE_ENTRIES + 1)
    )
    actors, actions = await parts.database.look(audit_queries.known)
    shown = entries[:PAGE_ENTRIES]
    return parts.pages.page(
        request,
        "audit/page.html",
        page="audit",
        shell=shell(parts.state, parts.settings),
        asked=asked,
        rows=[audit_row(entry) for entry in shown],
        actors=actors,
        actions=actions,
        results=RESULTS,
        older=shown[-1].sequence if len(entries) > PAGE_ENTRIES else None,
        before=before,
        newer=0,
        newer_query=urlencode({**dict(parse_qsl(asked.query)), "than": shown[0].sequence if shown else 0}),
        chain=chain,
        days=await parts.retention.days(),
    )


def _newest(query: str) -> str:
    return f"/audit?{query}" if query else "/audit"


def file_answer(parts: Parts, asked: AuditFilter, ending: Literal["csv", "ndjson"]) -> Response:
    """All entries that are asked for, as a file."""
    is_csv = ending == "csv"
    render: Callable[[Sequence[AuditEntry]], str] = as_csv if is_csv else as_ndjson

    async def lines() -> AsyncIterator[str]:
        yield csv_head() if is_csv else ""
        async for batch in audit_queries.everything(parts.database, asked):
            yield render(batch)

    headers = {"content-disposition": f'attachment; filename="astraflow-audit.{ending}"'}
    media_type = "text/csv; charset=utf-8" if is_csv else "application/x-ndjson"
    return StreamingResponse(lines(), media_type=media_type, headers=headers)
