"""Nodes page: a table of fifty rows per page, and a heat map with one cell per node."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.reports.report import NodeState, Report
from web.components import formats
from web.components.downloads import Sheet
from web.components.live_texts import LiveText
from web.live.live_nodes import rows_digest
from web.live.node_texts import build_node_texts
from web.state.node_table import LEFT_STATES, NodeQuery, NodeRow, NodeTable

MAX_CHOICES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilter:
    """A link that shows the nodes of one state."""

    label: str
    href: str
    count: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column heading that sorts."""

    label: str
    href: str
    order: str
    """`ascending` or `descending` when the table is sorted by this column; else empty."""
    is_number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesView:
    """View model of the page, apart from live texts."""

    query: NodeQuery
    rows: Sequence[NodeRow]
    live_texts: dict[str, LiveText]
    filters: list[StateFilter]
    columns: list[Column]
    pools: Sequence[str]
    kinds: Sequence[str]
    regions: Sequence[str]
    page: int
    pages: int
    total: str
    members: str
    has_report: bool
    has_nodes: bool
    lost: str
    """Number of nodes lost within the last hour, in words, where they are not in the table; empty for none."""
    pools_with_recommendation: list[str]
    """Pools with a recommended size."""
    knows_spot: bool
    shows_type: bool
    """Whether types differ. A column with equal values is left out, as are regions named like their pools."""
    shows_region: bool


_COLUMNS = (
    ("Node", "name", False),
    ("State", "state", False),
    ("Pool", "pool", False),
    ("Type", "type", False),
    ("Region", "region", False),
    ("Episodes/s", "rate", True),
    ("Vs. type", "share", True),
    ("Busy, blocked, refresh", "busy", False),
    ("Versions", "lag", False),
    ("Leases", "leases", True),
    ("Age", "age", True),
    ("$ an hour", "cost", True),
)


def nodes_view(table: NodeTable | None, report: Report | None, query: NodeQuery) -> NodesView:
    """Builds one page of the table; a page number beyond the last shows the last."""
    if table is None or report is None:
        return NodesView(
            query=query, rows=[], live_texts={}, filters=[], columns=[], pools=(), kinds=(), regions=(), page=1,
            pages=1, total="", members="", has_report=False, has_nodes=False, lost="", pools_with_recommendation=[],
            knows_spot=False, shows_type=False, shows_region=False,
        )  # fmt: skip
    page = table.page(query)
    shown = {
        "type": len(table.values(lambda row: row.kind)) > 1,
        "region": any(row.node.facts.region != row.node.facts.pool for row in table.rows),
    }
    node_texts = {key: cell for row in page.rows for key, cell in build_node_texts(row, table.at).items()}
    return NodesView(
        query=query,
        rows=page.rows,
        live_texts={key: LiveText(text=text, tone=tone) for key, (text, tone) in node_texts.items()},
        filters=_filters(table, query),
        columns=[_column(query, *column) for column in _COLUMNS if shown.get(column[1], True)],
        shows_type=shown["type"],
        shows_region=shown["region"],
        pools=table.values(lambda row: row.node.facts.pool)[:MAX_CHOICES],
        kinds=table.values(lambda row: row.kind)[:MAX_CHOICES],
        regions=table.values(lambda row: row.node.facts.region)[:MAX_CHOICES],
        page=page.page,
        pages=page.pages,
        total=formats.several(page.total, "node"),
        members=rows_digest(page.rows),
        has_report=True,
        has_nodes=bool(table.rows),
        lost=_lost(table, query),
        pools_with_recommendation=[str(recommendation.pool) for recommendation in report.recommendations],
        knows_spot=any(row.is_spot is not None for row in page.rows) or bool(query.spot),
    )


_SHEET_COLUMNS = (
    "id", "name", "state", "pool", "type", "region", "spot", "engine", "hardware", "is_simulated", "episodes_per_s",
    "tokens_per_s", "rate_of_type", "busy", "blocked", "refresh", "versions_behind", "leases", "capacity", "joined_at",
    "heartbeat_age_s", "usd_per_hour", "lease_expiries", "last_error",
)  # fmt: skip


def nodes_sheet(rows: Sequence[NodeRow]) -> Sheet:
    """Returns all nodes that match the filter, with all their metrics, as a sheet for download."""
    gauges = [name for name in NODE_GAUGES if name not in _SHEET_COLUMNS]
    return Sheet(
        name="astraflow-nodes",
        columns=(*_SHEET_COLUMNS, *gauges, *NODE_COUNTERS),
        rows=[
            (
                *_sheet_row(row),
                *(row.node.gauges.get(name) for name in gauges),
                *(row.node.counters.get(name) for name in NODE_COUNTERS),
            )
            for row in rows
        ],
    )


def _sheet_row(row: NodeRow) -> tuple[object, ...]:
    node, facts, shares = row.node, row.node.facts, row.shares
    return (
        node.id, facts.name, node.state.value, facts.pool, row.kind, facts.region, row.is_spot, facts.engine,
        facts.hardware, facts.is_simulated, node.episodes_per_s, node.tokens_per_s, row.rate_share,
        shares.busy if shares else None, shares.blocked if shares else None, shares.refresh if shares else None,
        row.lag, node.leased, facts.capacity, node.joined_at, node.heartbeat_age_s, row.usd_per_hour,
        node.lease_expiries, node.errors[-1] if node.errors else None,
    )  # fmt: skip


def _lost(table: NodeTable, query: NodeQuery) -> str:
    lost = table.counts()[NodeState.LOST]
    return f"{formats.several(lost, 'node')} lost in the last hour" if lost and not query.state else ""


def _filters(table: NodeTable, query: NodeQuery) -> list[StateFilter]:
    counts = table.counts()
    total = sum(count for state, count in counts.items() if state not in LEFT_STATES)
    present = StateFilter(
        label="Present", href=_href(query, state="", page=1), count=formats.count(total), is_chosen=not query.state
    )
    return [
        present,
        *(
            StateFilter(
                label=state.value.capitalize(),
                href=_href(query, state=state.value, page=1),
                count=formats.count(count),
                is_chosen=query.state == state.value,
            )
            for state, count in counts.items()
            if count or query.state == state.value
        ),
    ]


def _column(query: NodeQuery, label: str, sort: str, is_number: bool) -> Column:
    is_sorted = query.sort == sort
    reversed_order = "" if query.order == "down" else "down"
    order = reversed_order if is_sorted else "down" if is_number else ""
    return Column(
        label=label,
        href=_href(query, sort=sort, order=order, page=1),
        order=("descending" if query.order == "down" else "ascending") if is_sorted else "",
        is_number=is_number,
    )


def _href(query: NodeQuery, **changes: object) -> str:
    address = query.address(**changes)
    return f"/nodes?{address}" if address else "/nodes"
