"""`/api/v1/weights`: versions, what they cost to publish and to bring, who is behind, and by which links."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from web.door.roles import Need, needs
from web.parts import Parts, PartsOf
from web.present.weight_page import weight_page
from web.present.weight_tables import TableName, weight_sheet
from web.routes.api.terms import PREFIX, Filled, Limit, refusals

router = APIRouter(prefix=PREFIX, tags=["weights"])

Page = Annotated[int, Query(ge=1, le=1_000_000, description="From 1; beyond the last it is empty.")]


class VersionAnswer(Filled):
    """What publishing one version took. Seconds are the trainer's."""

    policy: str
    version: int
    published_at: float = Field(description="Unix seconds.")
    full_bytes: int
    sent_bytes: int
    changed_share: float | None = Field(description="Of the elements; null when not known.")
    copy_s: float = Field(description="The trainer waited.")
    hash_s: float
    encode_s: float
    send_s: float


class RegionAnswer(Filled):
    """All links from one source into one region."""

    region: str
    source: str
    nodes: int
    versions: int
    full_bytes: int
    delta_bytes: int
    shared_bytes: int = Field(description="Mapped on the same host: these did not travel.")
    fetch_s: float | None = Field(description="Mean of all versions.")
    slowest_s: float | None = Field(description="The latest version took at most.")
    bytes_per_s: float | None
    breaks: int = Field(description="Of the link: got over, or another source was taken.")


class LaggardAnswer(Filled):
    """A node that serves an older version than the newest."""

    node: str
    region: str
    policy: str
    serves: str
    newest: str
    behind: int = Field(description="Versions.")
    bound: int = Field(description="Of staleness, in versions.")
    state: str
    is_beyond: bool = Field(description="Whether what it begins now may be too stale to train on.")


class TravelAnswer(Filled):
    """What one node had over one of its links, since its process began. Seconds are sums over versions."""

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
    resumes: int = Field(description="Breaks of the link that were got over.")
    failures: int = Field(description="Times that it was left for another one.")
    latest_bytes: int
    latest_fetch_s: float
    latest_behind: int
    latest_changed_share: float


class WeightsAnswer(Filled):
    """The weights of the run; all empty before its first report."""

    finding: str = Field(description="Who is behind, in a sentence.")
    versions: list[VersionAnswer] = Field(description="The latest of each policy, newest first.")
    regions: list[RegionAnswer]
    age_s: float | None = Field(description="Seconds since the report arrived.")


class LaggardList(Filled):
    """A page, those that are furthest behind first."""

    items: list[LaggardAnswer]
    total: int
    page: int
    pages: int


class TravelList(Filled):
    """A page of links."""

    items: list[TravelAnswer]
    total: int
    page: int
    pages: int


@router.get("/weights", response_model=WeightsAnswer, responses=refusals())
@needs(Need.READ)
async def weights(parts: PartsOf) -> dict[str, Any]:
    """Versions, and what came into each region from each source."""
    return {
        "finding": weight_page(parts.state.report).finding,
        "versions": _rows(parts, "versions"),
        "regions": _rows(parts, "regions"),
        "age_s": parts.state.age_s,
    }


@router.get("/weights/laggards", response_model=LaggardList, responses=refusals())
@needs(Need.READ)
async def laggards(parts: PartsOf, page: Page = 1, limit: Limit = 100) -> dict[str, Any]:
    """Nodes that serve an older version than the newest."""
    return _page(_rows(parts, "laggards"), page, limit)


@router.get("/weights/links", response_model=TravelList, responses=refusals())
@needs(Need.READ)
async def links(parts: PartsOf, page: Page = 1, limit: Limit = 100) -> dict[str, Any]:
    """Links of nodes, with the phases that bringing a version has."""
    return _page(_rows(parts, "links"), page, limit)


def _rows(parts: Parts, table: TableName) -> list[dict[str, Any]]:
    """One of the tables as the page and its files have it."""
    sheet = weight_sheet(parts.state.report, table)
    return [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]


def _page(rows: list[dict[str, Any]], page: int, limit: int) -> dict[str, Any]:
    shown = rows[(page - 1) * limit : page * limit]
    return {"items": shown, "total": len(rows), "page": page, "pages": max(1, -(-len(rows) // limit))}
