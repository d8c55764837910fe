"""The node table: filtered and paged here, so that a page stays small however large the pool is."""

from dataclasses import dataclass

from astraflow.contract.reports import NodeReport, NodeState, Report
from web.present import formats
from web.present.cells import visible_nodes

PAGE_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilter:
    """A link that shows the nodes of one state."""

    label: str
    state: str
    count: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePage:
    """One page of the table."""

    rows: list[NodeReport]
    filters: list[StateFilter]
    state: str
    page: int
    pages: int
    total: str
    has_report: bool
    advised: list[str]
    """Pools with advice on their size."""


def node_page(report: Report | None, *, state: str, page: int) -> NodePage:
    """The nodes in one state (or all of them), `PAGE_ROWS` to a page; a page beyond the last is the last."""
    everyone = visible_nodes(report) if report else []
    gone = [node for node in report.nodes if node.state is NodeState.GONE] if report else []
    known = {member.value: [node for node in [*everyone, *gone] if node.state is member] for member in NodeState}
    state = state if state in known else ""
    matching = known[state] if state else everyone
    pages = max(1, -(-len(matching) // PAGE_ROWS))
    page = min(max(1, page), pages)
    return NodePage(
        rows=matching[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
        filters=_filters(known, len(everyone), state),
        state=state,
        page=page,
        pages=pages,
        total=formats.several(len(matching), "node"),
        has_report=report is not None,
        advised=[str(advice.pool) for advice in report.advice] if report else [],
    )


def _filters(known: dict[str, list[NodeReport]], everyone: int, chosen: str) -> list[StateFilter]:
    states = [
        StateFilter(label=name.capitalize(), state=name, count=formats.count(len(nodes)), is_chosen=name == chosen)
        for name, nodes in known.items()
        if nodes or name == chosen
    ]
    everybody = StateFilter(label="All", state="", count=formats.count(everyone), is_chosen=not chosen)
    return [everybody, *states]
