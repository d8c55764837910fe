"""The nodes as they are now: one table for all pages, and the live texts of the rows that somebody looks at.

The frame that all browsers share says nothing of single nodes: with thousands of them it would be megabytes a second. A
page with a table of nodes names its query when it opens the WebSocket; after each frame it gets the texts of its own
rows, which were made and encoded once for everybody with that query.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Instance, LaunchId
from astraflow.contract.reports import NodeReport
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from web.feed.node_table import NodeQuery, NodeRow, NodeTable
from web.feed.state import RunState
from web.history.samples import Shares
from web.present.node_cells import row_cells

log = get_logger()

MOST_WATCHED = 400
"""Queries whose last texts are kept; who asked longest ago gets all texts of the page the next time."""

MACHINES_EVERY_S = 10.0
"""How old the fleet's ledger may be, of which nodes have their type, price and whether they are spot."""

LEDGER_PAGE = 1000
MOST_MACHINES = 20_000


class Ledger(Protocol):
    """Who knows machines: the client of the fleet plane."""

    async def instances(self, *, before: LaunchId | None = None, limit: int = LEDGER_PAGE) -> tuple[Instance, ...]:
        """The machines that are not gone, newest first."""


class SharesOf(Protocol):
    """Who measures how nodes spend their time: the recorder."""

    @property
    def shares(self) -> Mapping[str, Shares]:
        """By name of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What browsers with one query have been told."""

    number: int
    """Of the table that it shows."""
    before: int
    """Number of what was told before that."""
    texts: Mapping[str, tuple[str, str]]
    whole: str
    change: str
    """What is new since `before`; empty when nothing is."""


class NodesNow:
    """Reads the newest report, and the ledger where there is one.

    machines: by name of the node; a failed look at the ledger leaves what was known.
    """

    def __init__(self, state: RunState, shares: SharesOf, *, ledger: Ledger | None, clock: Clock) -> None:
        self._state = state
        self._shares = shares
        self._ledger = ledger
        self._clock = clock
        self._of: Sequence[NodeReport] | None = None
        self._table: NodeTable | None = None
        self._made = 0
        self._watched: dict[str, Watched] = {}
        self._looked_at: float | None = None
        self._looking = asyncio.Lock()
        self._making = asyncio.Lock()
        self.machines: Mapping[str, Instance] = {}

    async def table(self) -> NodeTable | None:
        """All nodes as rows; None before the first report. Made when the nodes are others than before.

        Thousands of rows, and the pages of each query, are made in small pieces: other work has its turn between them.
        """
        async with self._making:
            return await self._newest()

    async def with_machines(self) -> NodeTable | None:
        """The same, with the ledger no older than some seconds."""
        async with self._looking:
            now = self._clock.now()
            if self._ledger is not None and (self._looked_at is None or now - self._looked_at >= MACHINES_EVERY_S):
                self._looked_at = now
                await self._look(self._ledger)
        return await self.table()

    async def told(self, query: str, had: int) -> tuple[int, str]:
        """What a browser whose rows are those of table number `had` must be told, and the number it then has.

        The text is empty when nothing changed. query: as in the address of the page.
        """
        async with self._making:
            table = await self._newest()
            if table is None:
                return had, ""
            found = self._watched.pop(query, None)
            is_known = found is not None and found.number == self._made
            if found is None or not is_known:
                found = self._watch(table, query, found)
            self._watched[query] = found
            while len(self._watched) > MOST_WATCHED:
                del self._watched[next(iter(self._watched))]
            if not is_known:
                await asyncio.sleep(0)
        if had == found.number:
            return had, ""
        return found.number, found.change if had == found.before else found.whole

    async def _newest(self) -> NodeTable | None:
        """Whoever calls this holds `_making`."""
        report = self._state.report
        if report is None:
            return None
        if self._table is None or self._of is not report.nodes:
            table = await NodeTable.made(report, machines=self.machines, shares=self._shares.shares)
            self._of, self._table, self._made = report.nodes, table, self._made + 1
        return self._table

    def _watch(self, table: NodeTable, query: str, last: Watched | None) -> Watched:
        rows = table.page(NodeQuery.of(dict(parse_qsl(query)))).rows
        texts = {key: value for row in rows for key, value in row_cells(row, table.at).items()}
        members = members_of(rows)
        before = last.texts if last is not None else {}
        change = {key: value for key, value in texts.items() if before.get(key) != value}
        is_same = last is not None and not change and before.keys() == texts.keys()
        return Watched(
            number=self._made,
            before=last.number if last is not None else -1,
            texts=texts,
            whole=_encoded(texts, members),
            change="" if is_same else _encoded(change, members),
        )

    async def _look(self, ledger: Ledger) -> None:
        found: list[Instance] = []
        try:
            while len(found) < MOST_MACHINES:
                page = await ledger.instances(before=found[-1].id if found else None, limit=LEDGER_PAGE)
                found += page
                if len(page) < LEDGER_PAGE:
                    break
        except AstraFlowError as problem:
            log.info("ledger_not_read", problem=str(problem))
            return
        async with self._making:
            self.machines = {instance.id: instance for instance in found}
            self._table = None


def members_of(rows: Sequence[NodeRow]) -> str:
    """Names the rows of a page and their order: when it changes, the page fetches its table again."""
    ids = "\n".join(f"{row.node.id} {row.node.state.value}" for row in rows)
    return hashlib.blake2b(ids.encode(), digest_size=6).hexdigest()


def _encoded(texts: Mapping[str, tuple[str, str]], members: str) -> str:
    cells = {key: [text, tone] for key, (text, tone) in texts.items()}
    message = {"kind": "rows", "cells": cells, "members": members}
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
