"""Who produces, as rows that can be filtered and sorted: made once for each look at the nodes, for all pages."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlencode

from astraflow.contract.causes import Cause
from astraflow.contract.fleet import Instance
from astraflow.contract.reports import NodeReport, NodeState, Report
from web.history.samples import Shares

PAGE_ROWS = 50

HOUR_S = 3600.0

STATE_ORDER = (NodeState.LOST, NodeState.JOINING, NodeState.DRAINING, NodeState.READY, NodeState.GONE)
"""Those that need a look come first."""

_PLACES = {state: place for place, state in enumerate(STATE_ORDER)}

SPOT = {"yes": True, "no": False}


AT_ONCE = 500
"""Rows that are made before others of the process have their turn: a few milliseconds."""


class NodeRow(NamedTuple):
    """One node with what is reckoned of it. A tuple: each look at a large fleet makes one of every node."""

    node: NodeReport
    place: int
    """In the order that is shown when no other is asked for."""
    kind: str
    """Type of its machine where the fleet's ledger has it, else its engine and hardware."""
    is_spot: bool | None
    """None when nobody knows: the ledger has no machine of that name."""
    usd_per_hour: float | None
    rate_share: float | None
    """Its episodes a second over the median of the ready nodes of its kind."""
    lag: int | None
    """Versions behind the trainer it is farthest behind; None while it serves none."""
    is_beyond: bool
    """It is further behind than the staleness bound of that trainer."""
    shares: Shares | None
    cause: Cause | None
    """Why it goes, by the fleet's ledger, else by its own word; None while it stays, or nobody says."""

    @property
    def name(self) -> str:
        """As the node calls itself."""
        return self.node.facts.name

    @property
    def words(self) -> str:
        """What a search looks through."""
        facts = self.node.facts
        return f"{facts.name}\n{self.node.id}\n{facts.region}\n{self.kind}\n{facts.engine}".casefold()


_Key = Callable[[NodeRow], Any]

SORTS: dict[str, _Key] = {
    "": attrgetter("place"),
    "name": attrgetter("node.facts.name"),
    "state": attrgetter("place"),
    "pool": attrgetter("node.facts.pool"),
    "type": attrgetter("kind"),
    "region": attrgetter("node.facts.region"),
    "rate": attrgetter("node.episodes_per_s"),
    "share": lambda row: row.rate_share if row.rate_share is not None else -1.0,
    "busy": lambda row: row.shares.busy if row.shares is not None else -1.0,
    "lag": lambda row: row.lag if row.lag is not None else -1,
    "leases": attrgetter("node.leased"),
    "age": lambda row: -row.node.joined_at,
    "cost": lambda row: row.usd_per_hour if row.usd_per_hour is not None else -1.0,
}
"""What a table can be sorted by, from small to large."""

MOST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuery:
    """Which rows are shown, in which order: what the address of the page says."""

    state: str = ""
    """Empty: all but those that are gone."""
    pool: str = ""
    kind: str = ""
    region: str = ""
    spot: str = ""
    text: str = ""
    sort: str = ""
    order: str = ""
    """`down` from large to small."""
    page: int = 1

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> "NodeQuery":
        """As an address has it; what it cannot mean is left out."""
        text = {name: asked.get(name, "")[:MOST_TEXT] for name in ("state", "pool", "kind", "region", "spot", "text")}
        sort, page = asked.get("sort", ""), asked.get("page", "")
        return cls(
            **text | {"state": text["state"] if text["state"] in {state.value for state in NodeState} else ""},
            sort=sort if sort in SORTS else "",
            order="down" if asked.get("order") == "down" else "",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
        )

    @property
    def narrows(self) -> bool:
        """Whether it leaves anybody out besides by state."""
        return bool(self.pool or self.kind or self.region or self.spot or self.text)

    def address(self, **changes: Any) -> str:
        """The same with changes, as the query of an address, without what is usual."""
        asked = asdict(replace(self, **changes))
        return urlencode({name: value for name, value in asked.items() if value not in ("", 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePage:
    """A page of what was asked for."""

    rows: Sequence[NodeRow]
    total: int
    page: int
    pages: int


class NodeTable:
    """All rows of one look at the nodes. machines: by name of the node. shares: the latest measured, by name."""

    def __init__(
        self,
        report: Report,
        *,
        machines: Mapping[str, Instance] | None = None,
        shares: Mapping[str, Shares] | None = None,
        rows: list[NodeRow] | None = None,
    ) -> None:
        """rows: where they are made already."""
        self.at = report.at
        self._orders: dict[tuple[object, ...], list[NodeRow]] = {}
        self.rows = list(_rows(report, machines or {}, shares or {})) if rows is None else rows
        self._by_id: dict[str, NodeRow] = {row.node.id: row for row in self.rows}

    @classmethod
    async def made(
        cls, report: Report, *, machines: Mapping[str, Instance], shares: Mapping[str, Shares]
    ) -> "NodeTable":
        """The same, made without keeping others waiting."""
        rows: list[NodeRow] = []
        for row in _rows(report, machines, shares):
            rows.append(row)
            if len(rows) % AT_ONCE == 0:
                await asyncio.sleep(0)
        return cls(report, rows=rows)

    def get(self, node: str) -> NodeRow | None:
        """The row of that node."""
        return self._by_id.get(node)

    def matching(self, query: NodeQuery) -> list[NodeRow]:
        """All pages of what is asked for, in its order."""
        key = (query.state, query.pool, query.kind, query.region, query.spot, query.text, query.sort, query.order)
        if key not in self._orders:
            self._orders[key] = self._ordered(query)
        return self._orders[key]

    def page(self, query: NodeQuery) -> NodePage:
        """One page; one beyond the last is the last."""
        found = self.matching(query)
        pages = max(1, -(-len(found) // PAGE_ROWS))
        page = min(query.page, pages)
        return NodePage(rows=found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS], total=len(found), page=page, pages=pages)

    def counts(self) -> dict[NodeState, int]:
        """Nodes in each state."""
        found = dict.fromkeys(STATE_ORDER, 0)
        for row in self.rows:
            found[row.node.state] += 1
        return found

    def values(self, read: Callable[[NodeRow], str]) -> list[str]:
        """What a column has, each once, in order."""
        return sorted({read(row) for row in self.rows} - {""})

    def _ordered(self, query: NodeQuery) -> list[NodeRow]:
        found = self.rows
        for is_asked, fits in _filters(query):
            if is_asked:
                found = [row for row in found if fits(row)]
        if query.sort or query.order:
            found = sorted(found, key=SORTS[query.sort], reverse=query.order == "down")
        return found


def _filters(query: NodeQuery) -> Iterator[tuple[bool, Callable[[NodeRow], bool]]]:
    """What a query can ask for: whether it does, and which rows fit. Most ask for little, of thousands of rows."""
    state = NodeState(query.state) if query.state else None
    words = query.text.casefold().split()
    yield state is None, lambda row: row.node.state is not NodeState.GONE
    yield state is not None, lambda row: row.node.state is state
    yield bool(query.pool), lambda row: row.node.facts.pool == query.pool
    yield bool(query.kind), lambda row: row.kind == query.kind
    yield bool(query.region), lambda row: row.node.facts.region == query.region
    yield query.spot in SPOT, lambda row: row.is_spot is SPOT[query.spot]
    yield bool(words), lambda row: all(word in row.words for word in words)


def _rows(report: Report, machines: Mapping[str, Instance], shares: Mapping[str, Shares]) -> Iterator[NodeRow]:
    trained = {stream.policy: (stream.version, stream.max_staleness) for stream in report.streams}
    ordered = sorted(report.nodes, key=lambda node: (_PLACES[node.state], node.facts.name, node.id))
    kinds = [_kind(node, machines.get(node.facts.name)) for node in ordered]
    usual = _usual_rates(ordered, kinds)
    prices = {advice.pool: advice.inputs.get("price_per_hour") for advice in report.advice}
    for place, (node, kind) in enumerate(zip(ordered, kinds, strict=True)):
        machine = machines.get(node.facts.name)
        behind = [
            (trained[policy][0] - version, trained[policy][1])
            for policy, version in node.versions.items()
            if policy in trained
        ]
        told = machine.usd_per_hour if machine else node.facts.price_per_hour or prices.get(node.facts.pool)
        common = usual.get(kind, 0.0)
        yield NodeRow(
            node=node,
            place=place,
            kind=kind,
            is_spot=machine.is_spot if machine else None,
            usd_per_hour=told or None,
            rate_share=node.episodes_per_s / common if common > 0 else None,
            lag=max(0, max(lag for lag, _ in behind)) if behind else None,
            is_beyond=any(lag > bound for lag, bound in behind),
            shares=shares.get(node.facts.name) or _lifetime(node, report.at),
            cause=(machine.cause if machine else None) or node.cause,
        )


def _kind(node: NodeReport, machine: Instance | None) -> str:
    if machine is not None and machine.type:
        return machine.type
    facts = node.facts
    return f"{facts.engine} on {facts.hardware}" if facts.hardware else facts.engine


def _usual_rates(nodes: Sequence[NodeReport], kinds: Sequence[str]) -> dict[str, float]:
    rates: dict[str, list[float]] = {}
    for node, kind in zip(nodes, kinds, strict=True):
        if node.state is NodeState.READY:
            rates.setdefault(kind, []).append(node.episodes_per_s)
    return {kind: median(found) for kind, found in rates.items()}


def _lifetime(node: NodeReport, at: float) -> Shares | None:
    """Shares of all its time since it joined; None for a node that does not say, or joined a moment ago."""
    passed_s = at - node.beat_age_s - node.joined_at
    if passed_s < 1.0 or "busy_s" not in node.counters:
        return None
    busy, blocked, refresh = (
        min(1.0, node.counters.get(name, 0.0) / passed_s) for name in ("busy_s", "blocked_s", "weight_pause_s")
    )
    return Shares(busy=busy, blocked=blocked, refresh=refresh, is_recent=False)
