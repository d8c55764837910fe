"""`/nodes`: everybody who produces, and asking one of them to leave."""

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from astraflow.contract.ids import NodeId
from web.audit import Deed
from web.parts import PartsOf, ViewerOf
from web.present.nodes import NodePage, node_page
from web.present.shell import shell
from web.roles import Need, needs
from web.steering import reason_of, steered

router = APIRouter()


@router.get("/nodes")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf, state: str = "", page: int = 1) -> Response:
    """The table, one page of it."""
    return parts.pages.page(
        request,
        "nodes/page.html",
        page="nodes",
        shell=shell(parts.state, parts.settings),
        cells=parts.frames.cells,
        view=_view(parts, state, page),
    )


@router.get("/nodes/rows")
@needs(Need.READ)
async def rows(request: Request, parts: PartsOf, state: str = "", page: int = 1) -> Response:
    """The same rows alone, for when nodes come and go."""
    return parts.pages.page(request, "nodes/_table.html", cells=parts.frames.cells, view=_view(parts, state, page))


@router.get("/nodes/{node:path}/drain")
@needs(Need.OPERATE)
async def ask_drain(request: Request, parts: PartsOf, node: str) -> Response:
    """Say what draining would do, and ask."""
    node_id = NodeId(node)
    known = {report.id: report for report in parts.state.report.nodes} if parts.state.report else {}
    found = known.get(node_id)
    name = found.facts.name if found else node_id
    return parts.pages.page(
        request,
        "confirm.html",
        page="nodes",
        shell=shell(parts.state, parts.settings),
        title=f"Drain {name}?",
        sentence=(
            f"It finishes the {found.leased if found else 0} episodes it has, leases no more, then leaves the run. "
            "Nothing is lost. The other nodes carry on; production falls by its share until another node joins."
        ),
        action=request.url.path,
        button="Drain node",
        back="/nodes",
        tone="bad",
    )


@router.post("/nodes/{node:path}/drain")
@needs(Need.OPERATE)
async def drain(parts: PartsOf, viewer: ViewerOf, node: str, reason: str = Form("")) -> Response:
    """Ask the node to finish and leave."""
    asked = parts.control.drain_node(NodeId(node), actor=viewer.name, reason=reason_of(reason))
    deed = Deed(action="node.drain", target=node, reason=reason)
    return await steered(parts, viewer, deed, asked, if_failed="The node was not drained", back="/nodes")


def _view(parts: PartsOf, state: str, page: int) -> NodePage:
    return node_page(parts.state.report, state=state, page=page)
