"""Live table of nodes for all pages, and the live texts of the rows that a browser shows.

The frame that all browsers share contains no single nodes, which would be megabytes per second for thousands of them. A
page with a table of nodes sends its query when it opens the WebSocket. After each frame it gets the texts of its rows,
which are rendered and encoded once for all browsers with that query.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from pydantic_core import to_json

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.instances import Instance, LaunchId
from astraflow.contract.ids import NodeId
from astraflow.contract.reports.report import NodeReport
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web.history.samples import TimeShares
from web.live.node_texts import build_node_texts
from web.state.node_table import NodeQuery, NodeRow, NodeTable
from web.state.run_state import RunState

log = get_logger()

MAX_WATCHED_QUERIES = 400
"""Number of queries whose last texts are retained; a browser of an evicted query gets all texts of its page again."""

INSTANCE_REFRESH_S = 10.0
"""Maximum age in seconds of the fleet's instances, which provide type, price and spot state of nodes."""

INSTANCE_PAGE_SIZE = 1000
MAX_INSTANCES = 20_000


class InstanceSource(Protocol):
    """Interface of the source of instances: the client of the fleet plane."""

    async def instances(
        self, *, before: LaunchId | None = None, limit: int = INSTANCE_PAGE_SIZE
    ) -> tuple[Instance, ...]:
        """Returns the instances that are not gone, newest first."""


class ShareSource(Protocol):
    """Interface of the source of time shares of nodes: the recorder."""

    @property
    def shares(self) -> Mapping[str, TimeShares]:
        """Time shares by node name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedQuery:
    """Messages sent to browsers with one query."""

    number: int
    """Number of the table that it shows."""
    previous_number: int
    """Number of the table that the previous messages showed."""
    texts: Mapping[str, tuple[str, str]]
    members: str
    """Digest of the rows and their order."""
    change_message: str
    """Changes since `previous_number`; empty when there are none."""

    def message_since(self, number: int) -> str:
        """Returns the message for a browser that shows table `number`; empty when nothing changed."""
        if number == self.number:
            return ""
        return self.change_message if number == self.previous_number else _encoded(self.texts, self.members)


class LiveNodes:
    """Builds the table from the newest report and the fleet's instances.

    instances: instances by node name; a failed refresh keeps the earlier ones.
    """

    def __init__(
        self, state: RunState, shares: ShareSource, *, instance_source: InstanceSource | None, clock: Clock
    ) -> None:
        self._state = state
        self._shares = shares
        self._instance_source = instance_source
        self._clock = clock
        self._table_nodes: Sequence[NodeReport] | None = None
        self._table: NodeTable | None = None
        self._table_number = 0
        self._row_texts: dict[NodeId, dict[str, tuple[str, str]]] = {}
        """Texts of the rows of the newest table that some query shows."""
        self._watched: dict[str, WatchedQuery] = {}
        self._instances_read_at: float | None = None
        self._refresh_lock = asyncio.Lock()
        self._table_lock = asyncio.Lock()
        self.instances: Mapping[str, Instance] = {}

    async def table(self) -> NodeTable | None:
        """Returns the table of all nodes; None before the first report. It is rebuilt when the nodes changed.

        Large tables are built in pieces, and yield to other tasks in between.
        """
        async with self._table_lock:
            return await self._newest_table()

    async def table_with_instances(self) -> NodeTable | None:
        """Returns the table with instances that are at most `INSTANCE_REFRESH_S` old."""
        async with self._refresh_lock:
            now = self._clock.now()
            if self._instance_source is not None and (
                self._instances_read_at is None or now - self._instances_read_at >= INSTANCE_REFRESH_S
            ):
                self._instances_read_at = now
                await self._refresh_instances(self._instance_source)
        return await self.table()

    async def update_for(self, query: str, known_number: int) -> tuple[int, str]:
        """Returns the number of the newest table, and the message for a browser that shows table `known_number`.

        The message is empty when nothing changed. query: query string of the page's address.
        """
        async with self._table_lock:
            table = await self._newest_table()
            if table is None:
                return known_number, ""
            watched = self._watched.pop(query, None)
            is_known = watched is not None and watched.number == self._table_number
            if watched is None or not is_known:
                watched = self._render_query(table, query, watched)
            self._watched[query] = watched
            while len(self._watched) > MAX_WATCHED_QUERIES:
                del self._watched[next(iter(self._watched))]
            if not is_known:
                await asyncio.sleep(0)
        return watched.number, watched.message_since(known_number)

    async def _newest_table(self) -> NodeTable | None:
        """Returns the newest table. The caller holds `_table_lock`."""
        report = self._state.report
        if report is None:
            return None
        if self._table is None or self._table_nodes is not report.nodes:
            table = await NodeTable.build(report, instances=self.instances, shares=self._shares.shares)
            self._table_nodes, self._table, self._table_number = report.nodes, table, self._table_number + 1
            self._row_texts = {}
        return self._table

    def _render_query(self, table: NodeTable, query: str, last: WatchedQuery | None) -> WatchedQuery:
        rows = table.page(NodeQuery.from_params(dict(parse_qsl(query)))).rows
        texts: dict[str, tuple[str, str]] = {}
        for row in rows:
            if row.node.id not in self._row_texts:
                self._row_texts[row.node.id] = build_node_texts(row, table.at)
            texts |= self._row_texts[row.node.id]
        members = rows_digest(rows)
        previous_texts = last.texts if last is not None else {}
        change = {key: value for key, value in texts.items() if previous_texts.get(key) != value}
        is_same = last is not None and not change and previous_texts.keys() == texts.keys()
        return WatchedQuery(
            number=self._table_number,
            previous_number=last.number if last is not None else -1,
            texts=texts,
            members=members,
            change_message="" if is_same else _encoded(change, members),
        )

    async def _refresh_instances(self, source: InstanceSource) -> None:
        instances: list[Instance] = []
        try:
            while len(instances) < MAX_INSTANCES:
                page = await source.instances(before=instances[-1].id if instances else None, limit=INSTANCE_PAGE_SIZE)
                instances += page
                if len(page) < INSTANCE_PAGE_SIZE:
                    break
        except AstraFlowError as error:
            log.info("instances not read", problem=str(error))
            return
        async with self._table_lock:
            self.instances = {instance.id: instance for instance in instances}
            self._table = None


def rows_digest(rows: Sequence[NodeRow]) -> str:
    """Returns a digest of the rows of a page and their order; when it changes, the page fetches its table again."""
    ids = "\n".join(f"{row.node.id} {row.node.state.value}" for row in rows)
    return hashlib.blake2b(ids.encode(), digest_size=6).hexdigest()


def _encoded(texts: Mapping[str, tuple[str, str]], members: str) -> str:
    """Returns a message. It contains texts only, for which Pydantic's encoder takes a third of the time of `json`."""
    return to_json({"kind": "rows", "live_texts": texts, "members": members}).decode()
