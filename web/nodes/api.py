"""`/api/v1/nodes`: nodes as dataflow reports them, and draining a node."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.contract.causes import Cause
from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import NodeId
from astraflow.contract.reports import NodeReport, NodeState, Report
from web.history.report_json import json_value
from web.requests import fleet_commands
from web.requests.context import RequestContext, RequestContextDep, ViewerDep
from web.rest.common import (
    BODY_ERRORS,
    NAME,
    PREFIX,
    Key,
    Limit,
    MessageResponse,
    NodeName,
    Reason,
    RequestBody,
    ResponseModel,
    error_responses,
)
from web.security.roles import Permission, ResourceKind, needs

router = APIRouter(prefix=PREFIX, tags=["nodes"])

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


class NodeResponse(ResponseModel):
    """Node. Rates are means of the last ten seconds."""

    id: str
    facts: dict[str, Any] = Field(
        description="Facts reported by the node: name, pool, region, engine, capacity, price."
    )
    state: NodeState
    cause: Cause | None = Field(description="Why it drains or left, as it reported; null without a report.")
    joined_at: float
    heartbeat_age_s: float
    leased: int
    episodes_per_s: float
    tokens_per_s: float
    versions: dict[str, int] = Field(description="Served version by policy.")
    lag: dict[str, int] = Field(description="Versions behind the trainer, by policy.")
    lease_expiries: int
    errors: list[str]


class NodeDetail(NodeResponse):
    """Node with all its metrics."""

    counters: dict[str, float | None]
    gauges: dict[str, float | None]
    links: list[dict[str, Any]] = Field(description="Sources of its weights, with transfer metrics.")
    sessions: list[dict[str, Any]] = Field(
        description="Agents' sessions on it, the oldest first; see `GET /api/v1/agent-sessions`."
    )


class NodeList(ResponseModel):
    """Page of nodes."""

    items: list[NodeResponse]
    total: int = Field(description="Number of nodes that match the filter.")
    page: int
    pages: int
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


@router.get("/nodes", response_model=NodeList, responses=error_responses())
@needs(Permission.READ)
async def nodes(
    context: RequestContextDep,
    pool: Annotated[str | None, Query(pattern=NAME)] = None,
    state: Annotated[NodeState | None, Query()] = None,
    text: Annotated[str, Query(max_length=200, description="Part of the name, region, engine or hardware.")] = "",
    sort: Annotated[SortName, Query()] = "name",
    order: Annotated[Literal["up", "down"], Query()] = "up",
    page: Annotated[int, Query(ge=1, le=1_000_000, description="Page number from 1; empty beyond the last.")] = 1,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Lists nodes, filtered, sorted and paged."""
    report = _report(context)
    matching = [node for node in report.nodes if _matches(node, pool, state, text)]
    matching.sort(key=lambda node: (_SORTS[sort](node), node.id), reverse=order == "down")
    return {
        "items": [_to_response(report, node) for node in matching[(page - 1) * limit : page * limit]],
        "total": len(matching),
        "page": page,
        "pages": max(1, -(-len(matching) // limit)),
        "age_s": context.state.age_s,
    }


@router.post("/nodes/{node:path}/drain", response_model=MessageResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.OPERATE, on=ResourceKind.NODE)
async def drain(
    context: RequestContextDep, viewer: ViewerDep, node: NodeName, body: DrainRequest, key: Key
) -> dict[str, Any]:
    """Drains a node: it finishes its tasks and leaves the run. No result is lost.

    The fleet service replaces an instance that it started: to have fewer nodes, plan a change of the pool.
    """
    _node(_report(context), node)
    message = await fleet_commands.drain_node(
        context, viewer, NodeId(node), deadline_s=body.deadline_s, key=key, reason=body.reason
    )
    return {"message": message}


@router.get("/nodes/{node:resource}", response_model=NodeDetail, responses=error_responses(404))
@needs(Permission.READ)
async def get_node(context: RequestContextDep, node: NodeName) -> dict[str, Any]:
    """Returns a node with all its metrics."""
    report = _report(context)
    return _to_response(report, _node(report, node))


def _report(context: RequestContext) -> Report:
    if context.state.report is None:
        raise Unavailable(
            "cannot show the run: dataflow has not reported yet; try again in a few seconds", code="report.none_yet"
        )
    return context.state.report


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


def _to_response(report: Report, node: NodeReport) -> dict[str, Any]:
    return dict(json_value(asdict(node))) | {"lag": dict(report.lag(node))}
