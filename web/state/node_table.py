"""Table of nodes that can be filtered and sorted: built once per update of the nodes, for all pages."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlencode

from astraflow.contract.fleet.instances import Cause, Instance
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from web.history.samples import TimeShares

PAGE_ROWS = 50

HOUR_S = 3600.0

STATE_ORDER = (NodeState.READY, NodeState.JOINING, NodeState.DRAINING, NodeState.LOST, NodeState.GONE)
"""Nodes that work come first; those that do not are counted in one line."""

LEFT_STATES = (NodeState.LOST, NodeState.GONE)
"""States of nodes that are no longer there: they cost nothing and serve no version."""

LOST_SHOWN_S = HOUR_S
"""Time for which a lost node stays in the table. Seconds."""

_STATE_POSITIONS = {state: position for position, state in enumerate(STATE_ORDER)}

SPOT_FILTERS = {"yes": True, "no": False}


ROWS_BETWEEN_YIELDS = 500
"""Rows that are built before the task yields to others, which takes a few milliseconds."""


class NodeRow(NamedTuple):
    """A node with derived figures. A named tuple, because each update of a large fleet builds one for every node."""

    node: NodeReport
    position: int
    """Position in the default order."""
    kind: str
    """Type of its instance, else its engine and hardware."""
    is_spot: bool | None
    """None while unknown: the fleet has no instance of that name."""
    usd_per_hour: float | None
    rate_share: float | None
    """Episodes per second over the median of the ready nodes of its kind."""
    lag: int | None
    """Largest number of versions that it is behind a trainer; None while it serves none."""
    is_beyond: bool
    """Whether its lag exceeds the staleness bound of a trainer."""
    shares: TimeShares | None
    cause: Cause | None
    """Cause of its end, from the fleet's instance or its own report; None while it runs or the cause is unknown."""

    @property
    def name(self) -> str:
        """Name that the node reports."""
        return self.node.facts.name

    @property
    def search_text(self) -> str:
        """Text that a search covers."""
        facts = self.node.facts
        return f"{facts.name}\n{self.node.id}\n{facts.region}\n{self.kind}\n{facts.engine}".casefold()


_Key = Callable[[NodeRow], Any]

SORTS: dict[str, _Key] = {
    "": attrgetter("position"),
    "name": attrgetter("node.facts.name"),
    "state": attrgetter("position"),
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
"""Sort keys of the table, ascending."""

MAX_FILTER_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuery:
    """Filter, order and page of the table, from the page's address."""

    state: str = ""
    """Empty: all nodes except those that are lost or gone."""
    pool: str = ""
    kind: str = ""
    region: str = ""
    spot: str = ""
    text: str = ""
    sort: str = ""
    order: str = ""
    """`down` for descending."""
    page: int = 1

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> "NodeQuery":
        """Parses the query of an address; invalid values are ignored."""
        text = {
            name: params.get(name, "")[:MAX_FILTER_CHARS]
            for name in ("state", "pool", "kind", "region", "spot", "text")
        }
        sort, page = params.get("sort", ""), params.get("page", "")
        return cls(
            **text | {"state": text["state"] if text["state"] in {state.value for state in NodeState} else ""},
            sort=sort if sort in SORTS else "",
            order="down" if params.get("order") == "down" else "",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
        )

    @property
    def has_filters(self) -> bool:
        """Whether any filter besides the state is set."""
        return bool(self.pool or self.kind or self.region or self.spot or self.text)

    def address(self, **changes: Any) -> str:
        """Returns the query string with some changes, without default values."""
        values = asdict(replace(self, **changes))
        return urlencode({name: value for name, value in values.items() if value not in ("", 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePage:
    """One page of the matching rows."""

    rows: Sequence[NodeRow]
    total: int
    page: int
    pages: int


class NodeTable:
    """Rows of all nodes of a report. instances: instances by node name. shares: latest time shares by node name."""

    def __init__(
        self,
        report: Report,
        *,
        instances: Mapping[str, Instance] | None = None,
        shares: Mapping[str, TimeShares] | None = None,
        rows: list[NodeRow] | None = None,
    ) -> None:
        """rows: rows that were built before; None to build them."""
        self.at = report.at
        self._matching: dict[tuple[str, ...], list[NodeRow]] = {}
        self._orders: dict[tuple[str, ...], list[NodeRow]] = {}
        if rows is None:
            ordered = _ordered(report)
            kinds = _kinds(ordered, instances or {})
            rows = list(_rows(report, ordered, kinds, instances or {}, shares or {}))
        self.rows = rows
        self._by_id: dict[str, NodeRow] = {row.node.id: row for row in self.rows}

    @classmethod
    async def build(
        cls, report: Report, *, instances: Mapping[str, Instance], shares: Mapping[str, TimeShares]
    ) -> "NodeTable":
        """Builds the table and yields to other tasks in between."""
        ordered = _ordered(report)
        await asyncio.sleep(0)
        kinds = _kinds(ordered, instances)
        await asyncio.sleep(0)
        rows: list[NodeRow] = []
        for row in _rows(report, ordered, kinds, instances, shares):
            rows.append(row)
            if len(rows) % ROWS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
        return cls(report, rows=rows)

    def get(self, node: str) -> NodeRow | None:
        """Returns the row of a node; None for an unknown node."""
        return self._by_id.get(node)

    def matching(self, query: NodeQuery) -> list[NodeRow]:
        """Returns all matching rows, in order."""
        filters = (query.state, query.pool, query.kind, query.region, query.spot, query.text)
        if filters not in self._matching:
            self._matching[filters] = self._filtered(query)
        if not query.sort and not query.order:
            return self._matching[filters]
        order = (*filters, query.sort, query.order)
        if order not in self._orders:
            rows = self._matching[filters]
            self._orders[order] = sorted(rows, key=SORTS[query.sort], reverse=query.order == "down")
        return self._orders[order]

    def page(self, query: NodeQuery) -> NodePage:
        """Returns one page; a page number beyond the last returns the last."""
        rows = self.matching(query)
        pages = max(1, -(-len(rows) // PAGE_ROWS))
        page = min(query.page, pages)
        return NodePage(rows=rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS], total=len(rows), page=page, pages=pages)

    def counts(self) -> dict[NodeState, int]:
        """Returns the number of nodes per state."""
        counts = dict.fromkeys(STATE_ORDER, 0)
        for row in self.rows:
            counts[row.node.state] += 1
        return counts

    def values(self, read: Callable[[NodeRow], str]) -> list[str]:
        """Returns the distinct values of a column, sorted."""
        return sorted({read(row) for row in self.rows} - {""})

    def _filtered(self, query: NodeQuery) -> list[NodeRow]:
        rows = self.rows
        for is_set, matches in _filters(query):
            if is_set:
                rows = [row for row in rows if matches(row)]
        return rows


def _filters(query: NodeQuery) -> Iterator[tuple[bool, Callable[[NodeRow], bool]]]:
    """Yields for each filter whether the query sets it and its predicate, since most queries set few of them."""
    state = NodeState(query.state) if query.state else None
    words = query.text.casefold().split()
    yield state is None, lambda row: row.node.state not in LEFT_STATES
    yield state is not None, lambda row: row.node.state is state
    yield bool(query.pool), lambda row: row.node.facts.pool == query.pool
    yield bool(query.kind), lambda row: row.kind == query.kind
    yield bool(query.region), lambda row: row.node.facts.region == query.region
    yield query.spot in SPOT_FILTERS, lambda row: row.is_spot is SPOT_FILTERS[query.spot]
    yield bool(words), lambda row: all(word in row.search_text for word in words)


def _ordered(report: Report) -> list[NodeReport]:
    """Returns the nodes by state, the newest first, without those that were lost long ago."""
    shown = [node for node in report.nodes if node.state is not NodeState.LOST or node.heartbeat_age_s <= LOST_SHOWN_S]
    return sorted(shown, key=lambda node: (_STATE_POSITIONS[node.state], -node.joined_at, node.facts.name, node.id))


def _kinds(nodes: Iterable[NodeReport], instances: Mapping[str, Instance]) -> list[str]:
    return [_kind(node, instances.get(node.facts.name)) for node in nodes]


def _rows(
    report: Report,
    ordered: Sequence[NodeReport],
    kinds: Sequence[str],
    instances: Mapping[str, Instance],
    shares: Mapping[str, TimeShares],
) -> Iterator[NodeRow]:
    lags: dict[tuple[tuple[PolicyId, Version], ...], tuple[int | None, bool]] = {}
    """By served versions, of which there are few combinations."""
    median_rates = _median_rates(ordered, kinds)
    prices = {
        recommendation.pool: recommendation.inputs.get("price_per_hour") for recommendation in report.recommendations
    }
    for position, (node, kind) in enumerate(zip(ordered, kinds, strict=True)):
        instance = instances.get(node.facts.name)
        versions = tuple(node.versions.items())
        if versions not in lags:
            lags[versions] = _lag(versions, report)
        has_left = node.state in LEFT_STATES
        lag, is_beyond = (None, False) if has_left else lags[versions]
        price = instance.usd_per_hour if instance else node.facts.price_per_hour or prices.get(node.facts.pool)
        median_rate = median_rates.get(kind, 0.0)
        yield NodeRow(
            node=node,
            position=position,
            kind=kind,
            is_spot=instance.is_spot if instance else None,
            usd_per_hour=None if has_left else price or None,
            rate_share=node.episodes_per_s / median_rate if median_rate > 0 else None,
            lag=lag,
            is_beyond=is_beyond,
            shares=None if has_left else shares.get(node.facts.name) or _lifetime(node, report.at),
            cause=(instance.cause if instance else None) or node.cause,
        )


def _lag(versions: Iterable[tuple[PolicyId, Version]], report: Report) -> tuple[int | None, bool]:
    """Returns the largest number of versions behind a trainer, and whether one exceeds its staleness bound."""
    trained = {stream.policy: stream for stream in report.streams}
    lags = [(trained[policy].version - version, trained[policy]) for policy, version in versions if policy in trained]
    is_beyond = any(lag > stream.max_staleness for lag, stream in lags)
    return max((max(0, lag) for lag, _ in lags), default=None), is_beyond


def _kind(node: NodeReport, instance: Instance | None) -> str:
    if instance is not None and instance.type:
        return instance.type
    facts = node.facts
    return f"{facts.engine} on {facts.hardware}" if facts.hardware else facts.engine


def _median_rates(nodes: Sequence[NodeReport], kinds: Sequence[str]) -> dict[str, float]:
    rates: dict[str, list[float]] = {}
    for node, kind in zip(nodes, kinds, strict=True):
        if node.state is NodeState.READY:
            rates.setdefault(kind, []).append(node.episodes_per_s)
    return {kind: median(of_kind) for kind, of_kind in rates.items()}


def _lifetime(node: NodeReport, at: float) -> TimeShares | None:
    """Returns the time shares since the node joined; None when it reports none, or joined less than a second ago."""
    passed_s = at - node.heartbeat_age_s - node.joined_at
    if passed_s < 1.0 or "busy_s" not in node.counters:
        return None
    busy, blocked, refresh = (
        min(1.0, node.counters.get(name, 0.0) / passed_s) for name in ("busy_s", "blocked_s", "weight_pause_s")
    )
    return TimeShares(busy=busy, blocked=blocked, refresh=refresh, is_recent=False)
