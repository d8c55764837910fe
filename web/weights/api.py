"""`/api/v1/weights`: versions, the cost of publishing and fetching them, lagging nodes, and links."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from web.requests.context import RequestContext, RequestContextDep
from web.rest.common import PREFIX, Limit, ResponseModel, error_responses
from web.security.roles import Permission, needs
from web.weights.tables import TableName, weight_sheet
from web.weights.views import weight_page

router = APIRouter(prefix=PREFIX, tags=["weights"])

Page = Annotated[int, Query(ge=1, le=1_000_000, description="Page number from 1; empty beyond the last.")]


class VersionResponse(ResponseModel):
    """Cost of publishing one version. Seconds are measured in the trainer."""

    policy: str
    version: int
    published_at: float = Field(description="Unix seconds.")
    full_bytes: int
    sent_bytes: int
    changed_share: float | None = Field(description="Share of changed elements; null if unknown.")
    copy_s: float = Field(description="Seconds in which the trainer waited.")
    hash_s: float
    encode_s: float
    send_s: float


class RegionResponse(ResponseModel):
    """All links from one source to one region."""

    region: str
    source: str
    nodes: int
    versions: int
    full_bytes: int
    delta_bytes: int
    shared_bytes: int = Field(description="Bytes mapped from shared memory on the same host, not transferred.")
    fetch_s: float | None = Field(description="Mean seconds of all versions.")
    slowest_s: float | None = Field(description="Longest fetch of the latest version. Seconds.")
    bytes_per_s: float | None
    breaks: int = Field(description="Interrupted transfers, resumed or moved to another source.")


class LaggingNodeResponse(ResponseModel):
    """Node that serves an older version than the newest."""

    node: str
    region: str
    policy: str
    serves: str
    newest: str
    behind: int = Field(description="Lag in versions.")
    bound: int = Field(description="Staleness bound in versions.")
    state: str
    is_beyond: bool = Field(description="Whether episodes that start now may be too stale for training.")


class WeightLinkResponse(ResponseModel):
    """Totals of one link of a node since its process started. Seconds are sums over versions."""

    node: str
    region: str
    source: str = Field(description="Address of the store or mirror at the other end.")
    versions: int
    full_bytes: int
    delta_bytes: int
    shared_bytes: int
    fetch_s: float
    decode_s: float
    stage_s: float
    verify_s: float
    pause_s: float
    apply_s: float
    resume_s: float
    resumes: int = Field(description="Interrupted transfers that were resumed.")
    failures: int = Field(description="Times that the node switched to another source.")
    latest_bytes: int
    latest_fetch_s: float
    latest_versions_behind: int
    latest_changed_share: float


class WeightsResponse(ResponseModel):
    """Weights of the run; empty before the first report."""

    finding: str = Field(description="Lagging nodes, in one sentence.")
    versions: list[VersionResponse] = Field(description="Latest versions of each policy, newest first.")
    regions: list[RegionResponse]
    age_s: float | None = Field(description="Seconds since the report arrived.")


class LaggingNodeList(ResponseModel):
    """Page of lagging nodes, largest lag first."""

    items: list[LaggingNodeResponse]
    total: int
    page: int
    pages: int


class WeightLinkList(ResponseModel):
    """Page of links."""

    items: list[WeightLinkResponse]
    total: int
    page: int
    pages: int


@router.get("/weights", response_model=WeightsResponse, responses=error_responses())
@needs(Permission.READ)
async def weights(context: RequestContextDep) -> dict[str, Any]:
    """Returns versions, and transfers by region and source."""
    return {
        "finding": weight_page(context.state.report).finding,
        "versions": _rows(context, "versions"),
        "regions": _rows(context, "regions"),
        "age_s": context.state.age_s,
    }


@router.get("/weights/laggards", response_model=LaggingNodeList, responses=error_responses())
@needs(Permission.READ)
async def laggards(context: RequestContextDep, page: Page = 1, limit: Limit = 100) -> dict[str, Any]:
    """Lists nodes that serve an older version than the newest."""
    return _page(_rows(context, "laggards"), page, limit)


@router.get("/weights/links", response_model=WeightLinkList, responses=error_responses())
@needs(Permission.READ)
async def links(context: RequestContextDep, page: Page = 1, limit: Limit = 100) -> dict[str, Any]:
    """Lists the nodes' links with the phases of fetching a version."""
    return _page(_rows(context, "links"), page, limit)


def _rows(context: RequestContext, table: TableName) -> list[dict[str, Any]]:
    """Returns one table, with the columns of its exported file."""
    sheet = weight_sheet(context.state.report, table)
    return [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]


def _page(rows: list[dict[str, Any]], page: int, limit: int) -> dict[str, Any]:
    shown = rows[(page - 1) * limit : page * limit]
    return {"items": shown, "total": len(rows), "page": page, "pages": max(1, -(-len(rows) // limit))}
