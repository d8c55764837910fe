"""The page of nodes: a table of fifty rows a page however large the pool is, and a map with one cell for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.reports import NodeState, Report
from web.feed.node_table import NodeQuery, NodeRow, NodeTable
from web.feed.nodes_now import members_of
from web.present import formats
from web.present.cells import Cell
from web.present.node_cells import row_cells
from web.reading.exports import Sheet

MOST_CHOICES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilter:
    """A link that shows the nodes of one state."""

    label: str
    href: str
    count: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading that sorts."""

    label: str
    href: str
    order: str
    """`ascending` or `descending` when the table is sorted by it."""
    is_number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """What of a row does not change while it is there."""

    id: str
    name: str
    pool: str
    kind: str
    region: str
    spot: str
    usd: str
    capacity: str
    is_simulated: bool
    may_drain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesView:
    """What the page shows besides live texts."""

    query: NodeQuery
    rows: list[RowView]
    cells: dict[str, Cell]
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
    advised: list[str]
    """Pools with advice on their size."""
    knows_spot: bool
    shows_type: bool
    """A column in which all are alike is left out, as are regions that are called as their pools."""
    shows_region: bool


_COLUMNS = (
    ("Node", "name", False),
    ("State", "state", False),
    ("Pool", "pool", False),
    ("Type", "type", False),
    ("Region", "region", False),
    ("Episodes/s", "rate", True),
    ("Of its type", "share", True),
    ("Busy, blocked, refresh", "busy", False),
    ("Versions", "lag", False),
    ("Leases", "leases", True),
    ("Age", "age", True),
    ("$ an hour", "cost", True),
)


def nodes_view(table: NodeTable | None, report: Report | None, query: NodeQuery) -> NodesView:
    """One page of the table. A page beyond the last is the last."""
    if table is None or report is None:
        return NodesView(
            query=query, rows=[], cells={}, filters=[], columns=[], pools=(), kinds=(), regions=(), page=1, pages=1,
            total="", members="", has_report=False, has_nodes=False, advised=[], knows_spot=False, shows_type=False,
            shows_region=False,
        )  # fmt: skip
    page = table.page(query)
    shown = {
        "type": len(table.values(lambda row: row.kind)) > 1,
        "region": any(row.node.facts.region != row.node.facts.pool for row in table.rows),
    }
    live = {key: cell for row in page.rows for key, cell in row_cells(row, table.at).items()}
    return NodesView(
        query=query,
        rows=[_row_view(row) for row in page.rows],
        cells={key: Cell(text=text, tone=tone) for key, (text, tone) in live.items()},
        filters=_filters(table, query),
        columns=[_column(query, *column) for column in _COLUMNS if shown.get(column[1], True)],
        shows_type=shown["type"],
        shows_region=shown["region"],
        pools=table.values(lambda row: row.node.facts.pool)[:MOST_CHOICES],
        kinds=table.values(lambda row: row.kind)[:MOST_CHOICES],
        regions=table.values(lambda row: row.node.facts.region)[:MOST_CHOICES],
        page=page.page,
        pages=page.pages,
        total=formats.several(page.total, "node"),
        members=members_of(page.rows),
        has_report=True,
        has_nodes=bool(table.rows),
        advised=[str(advice.pool) for advice in report.advice],
        knows_spot=any(row.is_spot is not None for row in page.rows) or bool(query.spot),
    )


_SHEET = (
    "id", "name", "state", "pool", "type", "region", "spot", "engine", "hardware", "stand_in", "episodes_per_s",
    "tokens_per_s", "rate_of_type", "busy", "blocked", "refresh", "versions_behind", "leases", "capacity", "joined_at",
    "beat_age_s", "usd_per_hour", "lease_expiries", "last_error",
)  # fmt: skip


def nodes_sheet(rows: Sequence[NodeRow]) -> Sheet:
    """All that is filtered, as a file."""
    return Sheet(name="astraflow-nodes", columns=_SHEET, rows=[_sheet_row(row) for row in rows])


def _sheet_row(row: NodeRow) -> tuple[object, ...]:
    node, facts, shares = row.node, row.node.facts, row.shares
    return (
        node.id, facts.name, node.state.value, facts.pool, row.kind, facts.region, row.is_spot, facts.engine,
        facts.hardware, facts.is_simulated, node.episodes_per_s, node.tokens_per_s, row.rate_share,
        shares.busy if shares else None, shares.blocked if shares else None, shares.refresh if shares else None,
        row.lag, node.leased, facts.capacity, node.joined_at, node.beat_age_s, row.usd_per_hour, node.lease_expiries,
        node.errors[-1] if node.errors else None,
    )  # fmt: skip


def _row_view(row: NodeRow) -> RowView:
    node, facts = row.node, row.node.facts
    return RowView(
        id=node.id,
        name=facts.name,
        pool=facts.pool,
        kind=row.kind,
        region=facts.region,
        spot={True: "spot", False: "on demand", None: ""}[row.is_spot],
        usd=formats.dollars(row.usd_per_hour),
        capacity=formats.count(facts.capacity),
        is_simulated=facts.is_simulated,
        may_drain=node.state in (NodeState.READY, NodeState.JOINING),
    )


def _filters(table: NodeTable, query: NodeQuery) -> list[StateFilter]:
    counts = table.counts()
    there = sum(count for state, count in counts.items() if state is not NodeState.GONE)
    everybody = StateFilter(
        label="All", href=_href(query, state="", page=1), count=formats.count(there), is_chosen=not query.state
    )
    return [
        everybody,
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
    turned = "" if query.order == "down" else "down"
    order = turned if is_sorted else "down" if is_number else ""
    return Column(
        label=label,
        href=_href(query, sort=sort, order=order, page=1),
        order=("descending" if query.order == "down" else "ascending") if is_sorted else "",
        is_number=is_number,
    )


def _href(query: NodeQuery, **changes: object) -> str:
    asked = query.address(**changes)
    return f"/nodes?{asked}" if asked else "/nodes"
