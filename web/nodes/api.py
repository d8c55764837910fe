"""`/api/v1/nodes`: nodes as dataflow reports them, and draining a node."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.contract.ids import NodeId
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from web.requests.dependencies import ReportDep, StateDep
from web.rest.changes import ChangeDep
from web.rest.common import (
    NAME,
    PREFIX,
    ApiRouter,
    Limit,
    MessageResponse,
    NodeName,
    NumberedPage,
    PageNumber,
    Reason,
    RequestBody,
    ResponseModel,
)
from web.rest.contract_models import fields_of
from web.security.audit_log import AuditedCommand
from web.security.roles import Permission, ResourceKind, needs

router = ApiRouter(tags=["nodes"])

SortName = Literal["name", "state", "pool", "joined_at", "heartbeat_age_s", "leased", "episodes_per_s", "tokens_per_s"]

_SORTS: dict[str, Callable[[NodeReport], Any]] = {
    "name": lambda node: node.facts.name,
    "state": lambda node: node.state.value,
    "pool": lambda node: node.facts.pool,
    "joined_at": lambda node: node.joined_at,
    "heartbeat_age_s": lambda node: node.heartbeat_age_s,
    "leased": lambda node: node.leased,
    "episodes_per_s": lambda node: node.episodes_per_s,
    "tokens_per_s": lambda node: node.tokens_per_s,
}


@fields_of(NodeReport, without=("counters", "gauges", "links", "sessions"))
class NodeResponse(ResponseModel):
    """Node. Rates are means of the last ten seconds."""

    lag: dict[str, int] = Field(description="Versions behind the trainer, by policy.")


@fields_of(NodeReport)
class NodeDetail(NodeResponse):
    """Node with all its metrics."""


class NodeList(NumberedPage[NodeResponse]):
    """Page of nodes."""

    age_s: float | None = Field(description="Seconds since the report arrived.")


class DrainRequest(RequestBody):
    """Options of draining a node."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "its disk is failing", "deadline_s": 120}]})

    deadline_s: float = Field(
        0.0,
        ge=0,
        le=86400,
        allow_inf_nan=False,
        description="Seconds after which it returns unfinished tasks; 0 for no limit.",
    )
    reason: Reason


@router.get("/nodes", response_model=NodeList)
@needs(Permission.READ)
async def nodes(
    report: ReportDep,
    run_state: StateDep,
    pool: Annotated[str | None, Query(pattern=NAME)] = None,
    state: Annotated[NodeState | None, Query()] = None,
    text: Annotated[str, Query(max_length=200, description="Part of the name, region, engine or hardware.")] = "",
    sort: Annotated[SortName, Query()] = "name",
    order: Annotated[Literal["up", "down"], Query()] = "up",
    page: PageNumber = 1,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Lists nodes, filtered, sorted and paged."""
    matching = [node for node in report.nodes if _matches(node, pool, state, text)]
    matching.sort(key=lambda node: (_SORTS[sort](node), node.id), reverse=order == "down")
    page_fields = NumberedPage.cut(matching, page, limit)
    items = [NodeResponse.values_of(node, lag=report.lag(node)) for node in page_fields["items"]]
    return page_fields | {"items": items, "age_s": run_state.age_s}


@router.post("/nodes/{node:path}/drain", response_model=MessageResponse)
@needs(Permission.OPERATE, on=ResourceKind.NODE)
async def drain(change: ChangeDep, report: ReportDep, node: NodeName, body: DrainRequest) -> dict[str, str]:
    """Drains a node: it finishes its tasks and leaves the run. No result is lost.

    The fleet service replaces an instance that it started: to have fewer nodes, plan a change of the pool.
    """
    _node(report, node)
    audited = AuditedCommand(action="node.drain", target=node, reason=body.reason)
    return await change.audited(
        audited, lambda: change.commands.drain_node(NodeId(node), reason=body.reason, deadline_s=body.deadline_s)
    )


@router.get("/nodes/{node:resource}", response_model=NodeDetail)
@needs(Permission.READ)
async def get_node(report: ReportDep, node: NodeName) -> dict[str, Any]:
    """Returns a node with all its metrics."""
    node_report = _node(report, node)
    return NodeDetail.values_of(node_report, lag=report.lag(node_report))


def _node(report: Report, name: str) -> NodeReport:
    node_report = next((node for node in report.nodes if node.id == name), None)
    if node_report is None:
        raise HTTPException(404, f"cannot find node {name!r}: it is not in the run; list nodes with GET {PREFIX}/nodes")
    return node_report


def _matches(node: NodeReport, pool: str | None, state: NodeState | None, text: str) -> bool:
    if (pool and node.facts.pool != pool) or (state and node.state is not state):
        return False
    facts = node.facts
    return not text or text.casefold() in f"{facts.name} {facts.region} {facts.engine} {facts.hardware}".casefold()
