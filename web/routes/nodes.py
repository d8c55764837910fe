"""`/nodes`: everybody who produces, one of them, and asking some of them to leave."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, NotPermitted
from astraflow.contract.ids import NodeId
from web.acts.steering import reason_of, steered, told
from web.audit.entries import Deed
from web.door.flash import Flash
from web.door.places import Place
from web.door.roles import Need, On, needs
from web.door.subjects import pools_of_nodes
from web.feed.node_table import NodeQuery
from web.history import reading
from web.history.samples import NODE_VALUES, node_subject
from web.launching.launcher import UnknownRun
from web.parts import Parts, PartsOf, ViewerOf
from web.present.draining import drain_effect
from web.present.heat import SIDE, cell_words, heat_map
from web.present.node import node_page, rate_sheet
from web.present.nodes import nodes_sheet, nodes_view
from web.present.shell import shell
from web.reading.exports import Ending, sheet_answer

router = APIRouter()

CHART_S = 3600.0
CHART_ROWS = 400

MOST_DRAINED = 500
AT_ONCE = 16
"""Nodes that are asked at the same time."""


@router.get("/nodes")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """The table, one page of it."""
    asked = NodeQuery.of(request.query_params)
    return parts.pages.page(
        request,
        "nodes/page.html",
        page="nodes",
        shell=shell(parts.state, parts.settings),
        admins=await parts.accounts.users.admins(),
        **await _view(parts, asked),
    )


@router.get("/nodes.{ending}")
@needs(Need.READ)
async def take(request: Request, parts: PartsOf, ending: Ending) -> Response:
    """Every row of what is filtered, as a file."""
    table, asked = await parts.nodes.with_machines(), NodeQuery.of(request.query_params)
    return sheet_answer(nodes_sheet(table.matching(asked) if table else ()), ending)


@router.get("/nodes/rows")
@needs(Need.READ)
async def rows(request: Request, parts: PartsOf) -> Response:
    """The table alone, for when other nodes belong on it."""
    asked = NodeQuery.of(request.query_params)
    return parts.pages.page(request, "nodes/_table.html", **await _view(parts, asked))


@router.get("/nodes/map")
@needs(Need.READ)
async def show_map(request: Request, parts: PartsOf) -> Response:
    """One cell for each node that the filter leaves."""
    return parts.pages.page(
        request,
        "nodes/map.html",
        page="nodes",
        shell=shell(parts.state, parts.settings),
        **await _map(parts, NodeQuery.of(request.query_params)),
    )


@router.get("/nodes/map/cells")
@needs(Need.READ)
async def map_cells(request: Request, parts: PartsOf) -> Response:
    """The map alone, for the live page."""
    return parts.pages.page(request, "nodes/_map.html", **await _map(parts, NodeQuery.of(request.query_params)))


@router.get("/nodes/at")
@needs(Need.READ)
async def at(request: Request, parts: PartsOf, place: Annotated[int, Query(ge=0, le=1_000_000)] = 0) -> Response:
    """Which node a cell of the map is."""
    table = await parts.nodes.table()
    found = table.matching(NodeQuery.of(request.query_params)) if table else []
    if place >= len(found):
        raise HTTPException(404, "There is no such cell any more.")
    return JSONResponse({"words": cell_words(found[place]), "href": node_path(found[place].node.id)})


@router.get("/nodes/drain")
@needs(Need.OPERATE, on=On.NODE)
async def ask_drain_some(
    request: Request, parts: PartsOf, node: Annotated[list[str] | None, Query(max_length=MOST_DRAINED)] = None
) -> Response:
    """Say what draining these would do, and ask."""
    return await _ask_drain(request, parts, node or [], back="/nodes")


@router.post("/nodes/drain")
@needs(Need.OPERATE, on=On.NODE)
async def drain_some(
    parts: PartsOf,
    viewer: ViewerOf,
    node: Annotated[list[str] | None, Form(max_length=MOST_DRAINED)] = None,
    reason: Annotated[str, Form()] = "",
) -> Response:
    """Ask each of these to finish and leave. One that cannot be asked does not keep the others from it."""
    limit, failed = asyncio.Semaphore(AT_ONCE), dict[str, str]()
    asked = list(dict.fromkeys(node or ()))
    pools = dict(zip(asked, pools_of_nodes(parts.state, asked), strict=True))

    async def ask(one: str) -> None:
        deed = Deed(action="node.drain", target=one, reason=reason)
        try:
            if not viewer.may(Need.OPERATE, run=parts.run, pool=pools[one]):  # a form that the guard read otherwise
                raise NotPermitted(f"{viewer.name} may not drain nodes {Place(run=parts.run, pool=pools[one]).words}")
            async with limit:
                await parts.control.drain_node(NodeId(one), actor=viewer.name, reason=reason_of(reason))
        except AstraFlowError as problem:
            failed[one] = str(problem)
            deed = Deed(action=deed.action, target=one, reason=reason, result="failed", after={"problem": str(problem)})
        await parts.trail.note(viewer.author, deed)

    async with asyncio.TaskGroup() as tasks:
        for one in asked:
            tasks.create_task(ask(one))
    return told(_drained(len(asked), failed), back="/nodes")


@router.get("/nodes/{node:path}/drain")
@needs(Need.OPERATE, on=On.NODE)
async def ask_drain(request: Request, parts: PartsOf, node: str) -> Response:
    """The same for one."""
    return await _ask_drain(request, parts, [node], back=node_path(node))


@router.post("/nodes/{node:path}/drain")
@needs(Need.OPERATE, on=On.NODE)
async def drain(parts: PartsOf, viewer: ViewerOf, node: str, reason: Annotated[str, Form()] = "") -> Response:
    """Ask the node to finish and leave."""
    asked = parts.control.drain_node(NodeId(node), actor=viewer.name, reason=reason_of(reason))
    deed = Deed(action="node.drain", target=node, reason=reason)
    return await steered(parts, viewer, deed, asked, if_failed="The node was not drained", back="/nodes")


@router.get("/nodes/{node:path}/rate.{ending}")
@needs(Need.READ)
async def take_rate(parts: PartsOf, node: str, ending: Ending) -> Response:
    """What the chart of one node draws."""
    table = await parts.nodes.table()
    row = table.get(node) if table else None
    if row is None:
        raise HTTPException(404, f"No node {node[:140]} is in the run; one that restarts has a new id.")
    return sheet_answer(rate_sheet(row.name, await _rates(parts, row.name)), ending)


@router.get("/nodes/{node:path}/now")
@needs(Need.READ)
async def show_now(request: Request, parts: PartsOf, node: str) -> Response:
    """One node without the frame, for the live page."""
    return parts.pages.page(request, "nodes/_node.html", **await _node(parts, node))


@router.get("/nodes/{node:path}")
@needs(Need.READ)
async def show_node(request: Request, parts: PartsOf, node: str) -> Response:
    """One node."""
    return parts.pages.page(
        request,
        "nodes/node.html",
        page="nodes",
        shell=shell(parts.state, parts.settings),
        admins=await parts.accounts.users.admins(),
        **await _node(parts, node),
    )


def node_path(node: str) -> str:
    """Address of a node's page."""
    return f"/nodes/{_quoted(node)}"


async def _view(parts: Parts, asked: NodeQuery) -> dict[str, Any]:
    table = await parts.nodes.with_machines()
    view = nodes_view(table, parts.state.report, asked)
    return {"view": view, "cells": _cells(parts) | view.cells, "asked": asked}


async def _map(parts: Parts, asked: NodeQuery) -> dict[str, Any]:
    table = await parts.nodes.with_machines()
    view = nodes_view(table, parts.state.report, asked)
    heat = heat_map(table.matching(asked)) if table else None
    return {"view": view, "heat": heat, "side": SIDE, "cells": _cells(parts), "asked": asked}


async def _node(parts: Parts, node: str) -> dict[str, Any]:
    table = await parts.nodes.with_machines()
    row = table.get(node) if table else None
    if table is None or row is None:
        raise HTTPException(404, f"No node {node[:140]} is in the run; one that restarts has a new id.")
    view = node_page(row, table, parts.nodes.machines.get(row.name), await _rates(parts, row.name))
    return {
        "node": view,
        "pool": row.node.facts.pool,
        "cells": _cells(parts) | view.cells,
        "log": await _log_of(parts, row.name),
    }


async def _rates(parts: Parts, name: str) -> list[reading.Row]:
    report, run_id = parts.state.report, parts.recorder.run_id
    if report is None or run_id is None:
        return []
    since, subject = report.at - CHART_S, node_subject(name)
    return await parts.database.look(
        lambda session: reading.rows(session, run_id, subject, NODE_VALUES, since=since, at_most=CHART_ROWS)
    )


async def _log_of(parts: Parts, name: str) -> str:
    """Address of the node's log, when it is a process of a run that was launched from here; else empty."""
    run = parts.state.report.run if parts.state.report else ""
    try:
        launched = await parts.launcher.launch(run)
    except UnknownRun:
        return ""
    has_log = name in await asyncio.to_thread(launched.folder.logs)
    return f"/launches/{_quoted(run)}/log?program={_quoted(name)}" if has_log else ""


async def _ask_drain(request: Request, parts: Parts, nodes: list[str], *, back: str) -> Response:
    table = await parts.nodes.with_machines()
    known = [row for one in nodes if (row := table.get(one) if table else None) is not None]
    status = parts.fleet_state.status
    return parts.pages.page(
        request,
        "nodes/drain.html",
        page="nodes",
        shell=shell(parts.state, parts.settings),
        effect=drain_effect(known, table.rows if table else (), status.pools if status else ()),
        unknown=[one for one in nodes if table is None or table.get(one) is None],
        back=back,
    )


def _drained(asked: int, failed: Mapping[str, str]) -> Flash:
    if not asked:
        return Flash(text="No node was chosen", tone="bad")
    if failed:
        first, problem = next(iter(failed.items()))
        return Flash(text=f"{len(failed)} of {asked} nodes were not drained; {first}: {problem}", tone="bad")
    return Flash(text=f"{asked} node{'s' if asked > 1 else ''} will finish and leave", tone="good")


def _cells(parts: Parts) -> dict[str, Any]:
    return dict(parts.frames.cells)


def _quoted(text: str) -> str:
    return quote(text, safe="")
