"""`/api/v1/nodes`: who produces, as dataflow sees them, and asking one to leave."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import NodeId
from astraflow.contract.reports import NodeReport, Report
from web.acts import fleet as fleet_acts
from web.door.roles import Need, On, needs
from web.feed.report_json import plain
from web.parts import Parts, PartsOf, ViewerOf
from web.routes.api.fleet_terms import CauseName
from web.routes.api.terms import NAME, PREFIX, SENT, Body, Filled, Key, Limit, NodeName, Reason, Said, refusals

router = APIRouter(prefix=PREFIX, tags=["nodes"])

StateName = Literal["joining", "ready", "draining", "lost", "gone"]
SortName = Literal["name", "state", "pool", "joined_at", "beat_age_s", "leased", "episodes_per_s", "tokens_per_s"]

_SORTS: dict[str, Callable[[NodeReport], Any]] = {
    "name": lambda node: node.facts.name,
    "state": lambda node: node.state.value,
    "pool": lambda node: node.facts.pool,
    "joined_at": lambda node: node.joined_at,
    "beat_age_s": lambda node: node.beat_age_s,
    "leased": lambda node: node.leased,
    "episodes_per_s": lambda node: node.episodes_per_s,
    "tokens_per_s": lambda node: node.tokens_per_s,
}


class NodeAnswer(Filled):
    """One node. Rates are over the last ten seconds."""

    id: str
    facts: dict[str, Any] = Field(description="What it said of itself: name, pool, region, engine, capacity, price.")
    state: StateName
    cause: CauseName | None = Field(description="Why it drains or left, by its own word; null where it does not say.")
    joined_at: float
    beat_age_s: float
    leased: int
    episodes_per_s: float
    tokens_per_s: float
    versions: dict[str, int] = Field(description="By policy.")
    lag: dict[str, int] = Field(description="Versions behind the trainer, by policy.")
    lease_expiries: int
    errors: list[str]


class NodeDetail(NodeAnswer):
    """One node, with all that it measures."""

    counters: dict[str, float | None]
    gauges: dict[str, float | None]
    links: list[dict[str, Any]] = Field(description="Where its weights come from.")


class NodeList(Filled):
    """A page of nodes."""

    items: list[NodeAnswer]
    total: int = Field(description="That match.")
    page: int
    pages: int
    age_s: float | None = Field(description="Seconds since the report arrived.")


class DrainAsked(Body):
    """That a node is to finish and leave."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "its disk is failing", "deadline_s": 120}]})

    deadline_s: float = Field(
        0.0, ge=0, le=86400, allow_inf_nan=False, description="It hands back what has not ended by then; 0: no limit."
    )
    reason: Reason


@router.get("/nodes", response_model=NodeList, responses=refusals())
@needs(Need.READ)
async def nodes(
    parts: PartsOf,
    pool: Annotated[str | None, Query(pattern=NAME)] = None,
    state: Annotated[StateName | None, Query()] = None,
    text: Annotated[str, Query(max_length=200, description="Part of the name, region, engine or hardware.")] = "",
    sort: Annotated[SortName, Query()] = "name",
    order: Annotated[Literal["up", "down"], Query()] = "up",
    page: Annotated[int, Query(ge=1, le=1_000_000, description="From 1; beyond the last it is empty.")] = 1,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Nodes, filtered, sorted and paged."""
    report = _report(parts)
    found = [node for node in report.nodes if _matches(node, pool, state, text)]
    found.sort(key=lambda node: (_SORTS[sort](node), node.id), reverse=order == "down")
    return {
        "items": [_answer(report, node) for node in found[(page - 1) * limit : page * limit]],
        "total": len(found),
        "page": page,
        "pages": max(1, -(-len(found) // limit)),
        "age_s": parts.state.age_s,
    }


@router.post("/nodes/{node:path}/drain", response_model=Said, responses=refusals(404, *SENT))
@needs(Need.OPERATE, on=On.NODE)
async def drain(parts: PartsOf, viewer: ViewerOf, node: NodeName, body: DrainAsked, key: Key) -> dict[str, Any]:
    """Ask a node to finish what it has and leave the run. Nothing is lost.

    Its machine, if the fleet service started it, is replaced: to have fewer, plan a change of the pool.
    """
    _node(_report(parts), node)
    message = await fleet_acts.drain_node(
        parts, viewer, NodeId(node), deadline_s=body.deadline_s, key=key, reason=body.reason
    )
    return {"message": message}


@router.get("/nodes/{node:resource}", response_model=NodeDetail, responses=refusals(404))
@needs(Need.READ)
async def one(parts: PartsOf, node: NodeName) -> dict[str, Any]:
    """One node, with all that it measures."""
    report = _report(parts)
    return _answer(report, _node(report, node))


def _report(parts: Parts) -> Report:
    if parts.state.report is None:
        raise Unavailable("no report has arrived from dataflow yet")
    return parts.state.report


def _node(report: Report, name: str) -> NodeReport:
    found = next((node for node in report.nodes if node.id == name), None)
    if found is None:
        raise HTTPException(404, f"no node {name} is in the run")
    return found


def _matches(node: NodeReport, pool: str | None, state: str | None, text: str) -> bool:
    if (pool and node.facts.pool != pool) or (state and node.state.value != state):
        return False
    facts = node.facts
    return not text or text.casefold() in f"{facts.name} {facts.region} {facts.engine} {facts.hardware}".casefold()


def _answer(report: Report, node: NodeReport) -> dict[str, Any]:
    return dict(plain(asdict(node))) | {"lag": dict(report.lag(node))}
