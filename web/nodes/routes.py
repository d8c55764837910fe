"""`/nodes`: the node table, the heat map, one node's page, and draining nodes."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, NotPermitted
from astraflow.contract.ids import NodeId
from astraflow.contract.reports.report import Report
from web.components.downloads import FileFormat, sheet_response
from web.components.rendering import PageRenderer
from web.history import series_queries
from web.history.samples import NODE_VALUES, node_subject
from web.launcher.launcher import Launcher, UnknownRun
from web.live.followed_fleet import FollowedFleet
from web.live.live_nodes import LiveNodes
from web.middleware.request_resources import pools_of_nodes
from web.nodes.draining import drain_effect
from web.nodes.heat_map import CELL_SIDE, cell_description, heat_map
from web.nodes.node_view import node_page, rate_sheet
from web.nodes.views import nodes_sheet, nodes_view
from web.requests.dependencies import (
    AdminsDep,
    CommandsDep,
    FleetDep,
    HistoryDep,
    LauncherDep,
    LiveTextsDep,
    NodesDep,
    PagesDep,
    StateDep,
)
from web.requests.range_points import HistorySource
from web.requests.responses import reason_of, redirect_with_flash, redirects
from web.security.audit_log import AuditedCommand
from web.security.flash import Flash
from web.security.roles import Permission, Resource, ResourceKind, needs
from web.state.node_table import NodeQuery

router = APIRouter()

CHART_S = 3600.0
CHART_ROWS = 400

MAX_DRAINED_NODES = 500
CONCURRENT_DRAINS = 16
"""Drain requests in flight at the same time."""


async def _table(request: Request, state: StateDep, nodes: NodesDep, live_texts: LiveTextsDep) -> dict[str, Any]:
    query, table = NodeQuery.from_params(request.query_params), await nodes.table_with_instances()
    view = nodes_view(table, state.report, query)
    return {"view": view, "live_texts": {**live_texts, **view.live_texts}, "filters": query}


async def _map(request: Request, state: StateDep, nodes: NodesDep, live_texts: LiveTextsDep) -> dict[str, Any]:
    query, table = NodeQuery.from_params(request.query_params), await nodes.table_with_instances()
    view = nodes_view(table, state.report, query)
    heat = heat_map(table.matching(query)) if table else None
    return {"view": view, "heat": heat, "side": CELL_SIDE, "live_texts": live_texts, "filters": query}


async def _node(
    node: str, history: HistoryDep, nodes: NodesDep, launcher: LauncherDep, live_texts: LiveTextsDep
) -> dict[str, Any]:
    table = await nodes.table_with_instances()
    row = table.get(node) if table else None
    if table is None or row is None:
        raise HTTPException(404, f"No node {node[:140]} in this run. A restarted node has a new id.")
    view = node_page(row, table, nodes.instances.get(row.name), await _rates(history, row.name))
    return {
        "node": view,
        "pool": row.node.facts.pool,
        "live_texts": {**live_texts, **view.live_texts},
        "log": await _log_of(history.state.report, launcher, row.name),
    }


async def _rates(history: HistorySource, name: str) -> list[series_queries.Row]:
    report, run_id = history.state.report, history.recorder.run_id
    if report is None or run_id is None:
        return []
    since, subject = report.at - CHART_S, node_subject(name)
    return await history.database.read(
        lambda session: series_queries.rows(session, run_id, subject, NODE_VALUES, since=since, at_most=CHART_ROWS)
    )


async def _log_of(report: Report | None, launcher: Launcher, name: str) -> str:
    """Returns the address of the node's log if the node is a process of a run launched from here; else empty."""
    run = report.run if report else ""
    try:
        launched = await launcher.launch(run)
    except UnknownRun:
        return ""
    has_log = name in await asyncio.to_thread(launched.folder.logs)
    return f"/launches/{_quoted(run)}/log?program={_quoted(name)}" if has_log else ""


@router.get("/nodes")
@needs(Permission.READ)
async def show(
    request: Request, pages: PagesDep, admins: AdminsDep, view: Annotated[dict[str, Any], Depends(_table)]
) -> Response:
    """Shows one page of the node table."""
    return pages.page(request, "nodes/page.html", page="nodes", admins=admins, **view)


@router.get("/nodes.{ending}")
@needs(Permission.READ)
async def export(request: Request, nodes: NodesDep, ending: FileFormat) -> Response:
    """Returns all rows that match the filter, as a file."""
    table, query = await nodes.table_with_instances(), NodeQuery.from_params(request.query_params)
    return sheet_response(nodes_sheet(table.matching(query) if table else ()), ending)


@router.get("/nodes/rows")
@needs(Permission.READ)
async def rows(request: Request, pages: PagesDep, view: Annotated[dict[str, Any], Depends(_table)]) -> Response:
    """Returns the table as a fragment, for a live page whose set of nodes changed."""
    return pages.page(request, "nodes/_table.html", **view)


@router.get("/nodes/map")
@needs(Permission.READ)
async def show_map(request: Request, pages: PagesDep, view: Annotated[dict[str, Any], Depends(_map)]) -> Response:
    """Shows the heat map: one cell per node that matches the filter."""
    return pages.page(request, "nodes/map.html", page="nodes", **view)


@router.get("/nodes/map/cells")
@needs(Permission.READ)
async def map_cells(request: Request, pages: PagesDep, view: Annotated[dict[str, Any], Depends(_map)]) -> Response:
    """Returns the heat map as a fragment, for the live page."""
    return pages.page(request, "nodes/_map.html", **view)


@router.get("/nodes/map/cell")
@needs(Permission.READ)
async def show_map_cell(
    request: Request, nodes: NodesDep, index: Annotated[int, Query(ge=0, le=1_000_000)] = 0
) -> Response:
    """Returns the description and the address of the node that a heat map cell shows."""
    table = await nodes.table()
    matching_rows = table.matching(NodeQuery.from_params(request.query_params)) if table else []
    if index >= len(matching_rows):
        raise HTTPException(404, "Cannot show this cell: the map has changed; reload the page.")
    return JSONResponse(
        {"words": cell_description(matching_rows[index]), "href": node_path(matching_rows[index].node.id)}
    )


@router.get("/nodes/drain")
@needs(Permission.OPERATE, on=ResourceKind.NODE)
async def ask_drain_some(
    request: Request,
    pages: PagesDep,
    fleet: FleetDep,
    nodes: NodesDep,
    node: Annotated[list[str] | None, Query(max_length=MAX_DRAINED_NODES)] = None,
) -> Response:
    """Shows the confirmation page for draining several nodes, with the effect."""
    return await _ask_drain(request, pages, fleet, nodes, node or [], back="/nodes")


@router.post("/nodes/drain")
@needs(Permission.OPERATE, on=ResourceKind.NODE)
async def drain_some(
    commands: CommandsDep,
    node: Annotated[list[str] | None, Form(max_length=MAX_DRAINED_NODES)] = None,
    reason: Annotated[str, Form()] = "",
) -> Response:
    """Drains each of the nodes. A failed request does not stop the others."""
    run, viewer = commands.run, commands.viewer
    limit, failed = asyncio.Semaphore(CONCURRENT_DRAINS), dict[str, AstraFlowError]()
    node_ids = list(dict.fromkeys(node or ()))
    pools = dict(zip(node_ids, pools_of_nodes(run.state, node_ids), strict=True))

    async def drain_one(node_id: str) -> str:
        # The middleware may have parsed the form's nodes differently: check each node's pool again.
        if not viewer.may(Permission.OPERATE, run=run.name, pool=pools[node_id]):
            resource = Resource(run=run.name, pool=pools[node_id]).description
            raise NotPermitted(
                f"cannot drain node {node_id!r}: {viewer.name} has no operator role {resource}; ask an admin",
                code="node.drain_not_permitted",
            )
        async with limit:
            return await run.control.drain_node(NodeId(node_id), actor=viewer.name, reason=reason_of(reason))

    async def record_drain(node_id: str) -> None:
        command = AuditedCommand(action="node.drain", target=node_id, reason=reason)
        try:
            await commands.audit_log.record(viewer.author, command, lambda: drain_one(node_id))
        except AstraFlowError as problem:
            failed[node_id] = problem

    async with asyncio.TaskGroup() as tasks:
        for node_id in node_ids:
            tasks.create_task(record_drain(node_id))
    return redirect_with_flash(_drain_message(len(node_ids), failed), page="/nodes")


@router.get("/nodes/{node:path}/drain")
@needs(Permission.OPERATE, on=ResourceKind.NODE)
async def ask_drain(request: Request, pages: PagesDep, fleet: FleetDep, nodes: NodesDep, node: str) -> Response:
    """Shows the confirmation page for draining one node."""
    return await _ask_drain(request, pages, fleet, nodes, [node], back=node_path(node))


@router.post("/nodes/{node:path}/drain")
@needs(Permission.OPERATE, on=ResourceKind.NODE)
@redirects("/nodes", failed="The node was not drained")
async def drain(commands: CommandsDep, node: str, reason: Annotated[str, Form()] = "") -> str:
    """Drains the node: it finishes its tasks and leaves the run."""
    command = AuditedCommand(action="node.drain", target=node, reason=reason)
    return await commands.audited(command, lambda: commands.drain_node(NodeId(node), reason=reason_of(reason)))


@router.get("/nodes/{node:path}/rate.{ending}")
@needs(Permission.READ)
async def export_rate(history: HistoryDep, nodes: NodesDep, node: str, ending: FileFormat) -> Response:
    """Returns the series that a node's chart draws, as a file."""
    table = await nodes.table()
    row = table.get(node) if table else None
    if row is None:
        raise HTTPException(404, f"No node {node[:140]} in this run. A restarted node has a new id.")
    return sheet_response(rate_sheet(row.name, await _rates(history, row.name)), ending)


@router.get("/nodes/{node:path}/now")
@needs(Permission.READ)
async def show_now(request: Request, pages: PagesDep, view: Annotated[dict[str, Any], Depends(_node)]) -> Response:
    """Returns a node's details as a fragment, for the live page."""
    return pages.page(request, "nodes/_node.html", **view)


@router.get("/nodes/{node:path}")
@needs(Permission.READ)
async def show_node(
    request: Request, pages: PagesDep, admins: AdminsDep, view: Annotated[dict[str, Any], Depends(_node)]
) -> Response:
    """Shows a node's page."""
    return pages.page(request, "nodes/node.html", page="nodes", admins=admins, **view)


def node_path(node: str) -> str:
    """Returns the address of a node's page."""
    return f"/nodes/{_quoted(node)}"


async def _ask_drain(
    request: Request, pages: PageRenderer, fleet: FollowedFleet, nodes: LiveNodes, node_ids: list[str], *, back: str
) -> Response:
    table = await nodes.table_with_instances()
    node_rows = [row for node_id in node_ids if (row := table.get(node_id) if table else None) is not None]
    status = fleet.state.status
    return pages.page(
        request,
        "nodes/drain.html",
        page="nodes",
        effect=drain_effect(node_rows, table.rows if table else (), status.pools if status else ()),
        unknown=[node_id for node_id in node_ids if table is None or table.get(node_id) is None],
        back=back,
    )


def _drain_message(requested: int, failed: Mapping[str, AstraFlowError]) -> Flash:
    if not requested:
        return Flash(text="No node is selected", tone="bad")
    if failed:
        first, problem = next(iter(failed.items()))
        return Flash.failure(f"{len(failed)} of {requested} nodes were not drained; {first}", problem)
    return Flash(text=f"{requested} node{'s are' if requested > 1 else ' is'} draining", tone="good")


def _quoted(text: str) -> str:
    return quote(text, safe="")
