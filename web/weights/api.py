"""`/api/v1/weights`: versions, the cost of publishing and fetching them, lagging nodes, and links."""

from typing import Any

from pydantic import Field

from astraflow.contract.ids import PolicyId
from astraflow.contract.weight_reports import LinkReport, VersionReport
from web.requests.dependencies import StateDep
from web.rest.common import ApiRouter, Limit, NumberedPage, PageNumber, ResponseModel
from web.rest.contract_models import fields_of
from web.security.roles import Permission, needs
from web.state.run_state import RunState
from web.weights.tables import Laggard, RegionRow, TableName, weight_sheet
from web.weights.views import weight_page

router = ApiRouter(tags=["weights"])


@fields_of(VersionReport, without=("changed_elements", "elements"))
class VersionResponse(ResponseModel):
    """Cost of publishing one version. Seconds are measured in the trainer."""

    policy: PolicyId
    changed_share: float | None


@fields_of(RegionRow)
class RegionResponse(ResponseModel):
    """All links from one source to one region."""


@fields_of(Laggard)
class LaggingNodeResponse(ResponseModel):
    """Node that serves an older version than the newest."""

    is_beyond: bool = Field(description="Whether episodes that start now may be too stale for training.")


@fields_of(LinkReport)
class WeightLinkResponse(ResponseModel):
    """Totals of one link of a node since its process started. Seconds are sums over versions."""

    node: str = Field(description="Name of the node.")
    region: str = Field(description="Region of the node.")


class WeightsResponse(ResponseModel):
    """Weights of the run; empty before the first report."""

    insight: str = Field(description="Lagging nodes, in one sentence.")
    versions: list[VersionResponse] = Field(description="Latest versions of each policy, newest first.")
    regions: list[RegionResponse] = Field(description="Links by region and source.")
    age_s: float | None = Field(description="Seconds since the report arrived.")


class LaggingNodeList(NumberedPage[LaggingNodeResponse]):
    """Page of lagging nodes, largest lag first."""


class WeightLinkList(NumberedPage[WeightLinkResponse]):
    """Page of links."""


@router.get("/weights", response_model=WeightsResponse)
@needs(Permission.READ)
async def weights(state: StateDep) -> dict[str, Any]:
    """Returns versions, and transfers by region and source."""
    return {
        "insight": weight_page(state.report).insight,
        "versions": _rows(state, "versions"),
        "regions": _rows(state, "regions"),
        "age_s": state.age_s,
    }


@router.get("/weights/laggards", response_model=LaggingNodeList)
@needs(Permission.READ)
async def laggards(state: StateDep, page: PageNumber = 1, limit: Limit = 100) -> dict[str, Any]:
    """Lists nodes that serve an older version than the newest."""
    return NumberedPage.cut(_rows(state, "laggards"), page, limit)


@router.get("/weights/links", response_model=WeightLinkList)
@needs(Permission.READ)
async def links(state: StateDep, page: PageNumber = 1, limit: Limit = 100) -> dict[str, Any]:
    """Lists the nodes' links with the phases of fetching a version."""
    return NumberedPage.cut(_rows(state, "links"), page, limit)


def _rows(state: RunState, table: TableName) -> list[dict[str, Any]]:
    """Returns one table, with the columns of its exported file."""
    sheet = weight_sheet(state.report, table)
    return [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]
