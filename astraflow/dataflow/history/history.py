"""History of a run: reports of the last minutes and one point per minute, durable; watchers of the next report."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from astraflow.archive.reports import compress_report, decompress_body
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.reports.queries import RESOLUTIONS_S
from astraflow.contract.reports.report import Report
from astraflow.contract.values import Json
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.losses import Losses
from astraflow.dataflow.history.minutes import MINUTE_S, MinuteAggregator
from astraflow.dataflow.storage.journal import Journal
from astraflow.wire.codecs.converter import from_message
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.request_limits import is_finite

PAGE_BYTES = 2**20
"""Bound of one answer, as messages: the client holds it as bytes, as messages and as reports at the same time."""

_NODE_BYTES = 1000
"""Approximate memory of one node's part of a report. Bytes."""


class History:
    """Stores every report of the last minutes, and one point per minute of the run (see `minutes`).

    Reports are stored without events, node errors and kinds of plugins, which repeat from report to report. The
    sequence is in the journal, which is never behind what watchers saw; the reports themselves are in the archive.
    """

    def __init__(self, journal: Journal, archive: Archive, *, seconds: int, minutes: int) -> None:
        """seconds, minutes: number of reports and points that are retained."""
        self._journal = journal
        self._archive = archive
        self._limits = {"seconds": seconds, "minutes": minutes}
        self._sequence = 0
        self._latest: Report | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._restore()

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next report; it grows over restarts."""
        return self._sequence + 1

    @property
    def losses(self) -> Losses:
        """Reports that could not be stored, read or sent."""
        return self._archive.losses

    @property
    def latest(self) -> Report | None:
        """Newest report; None before the first report of this process."""
        return self._latest

    def add(self, report: Report) -> None:
        """Stores a report and wakes the watchers."""
        self._sequence = report.sequence
        self._journal.touch()
        stored = _slim(report)
        self._store("seconds", stored)
        self._count(stored)
        self._latest = report
        self._changed.set()
        self._changed = asyncio.Event()

    async def page_after(self, sequence: int, *, limit: int, resolution_s: int) -> pb.HistoryReply:
        """Returns the oldest of the latest `limit` reports after `sequence`, as many as fit into an answer.

        Reports are stored in the form in which they are sent, and are not decoded here.

        resolution_s: 1 (or 0) for every report of the last minutes, 60 for one point per minute of the whole run.
        Raises: InvalidInput for another resolution.
        """
        if resolution_s not in (0, *RESOLUTIONS_S):
            resolutions = " or ".join(str(value) for value in RESOLUTIONS_S)
            raise InvalidInput(
                f"cannot read history at a resolution of {resolution_s} s: it is not recorded; use {resolutions}",
                code="history.unknown_resolution",
            )
        table = "minutes" if resolution_s == MINUTE_S else "seconds"
        after = min(sequence, self._sequence)  # no report is newer than the newest sequence
        return await self._archive.read(lambda database: _page(database, table, after, limit, self._archive.losses))

    async def all_reports_after(self, sequence: int, *, limit: int, resolution_s: int) -> list[pb.Report]:
        """Returns all of the latest `limit` reports, without pages. Raises: InvalidInput for another resolution."""
        reports: list[pb.Report] = []
        while True:
            page = await self.page_after(sequence, limit=limit, resolution_s=resolution_s)
            reports += page.reports
            if not page.has_more:
                return reports
            sequence = reports[-1].sequence

    async def watch(self) -> AsyncIterator[Report]:
        """Yields the latest report, then each new one until `stop`; a slow watcher skips to the latest."""
        last_sequence = 0
        while True:
            changed = self._changed
            if self._latest is not None and self._latest.sequence > last_sequence:
                last_sequence = self._latest.sequence
                yield self._latest
            elif self._is_stopping:
                return
            else:
                await changed.wait()

    def stop(self) -> None:
        """Ends all watches."""
        self._is_stopping = True
        self._changed.set()

    def state_dict(self) -> dict[str, Json]:
        """Returns the latest sequence number."""
        return {"sequence": self._sequence}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the latest sequence number of state or archive, whichever is higher."""
        self._sequence = max(self._sequence, state["sequence"])

    def _restore(self) -> None:
        """Restores sequence and minutes; a minute that the restart interrupted continues with its stored reports."""
        self._journal.load_state("history", self.load_state_dict)
        self._journal.register_state("history", self.state_dict)
        points = self._archive.rows("select sequence, body from minutes order by sequence desc limit 1")
        last = next((self._readable(sequence, body) for sequence, body in points), None)
        since = max((sequence for sequence, _ in points), default=0)
        self._minutes = MinuteAggregator(last)
        for sequence, body in self._archive.rows(
            "select sequence, body from seconds where sequence > ? order by sequence", (since,)
        ):
            report = self._readable(sequence, body)
            if report is not None:
                self._count(report)
            self._sequence = max(self._sequence, sequence)
        self._sequence = max(self._sequence, since)

    def _readable(self, sequence: int, body: bytes) -> Report | None:
        """Returns the report of a row; None, counted, if it is unreadable in this release or has non-finite figures."""
        try:
            return from_message(_message(body), Report)
        except Exception as problem:  # damaged bytes fail in zstandard, protobuf and contract types
            self._archive.losses.add("row_read", problem, sequence=sequence)
            return None

    def _count(self, report: Report) -> None:
        point = self._minutes.add(report)
        if point is not None:
            self._store("minutes", point)

    def _store(self, table: str, report: Report) -> None:
        self._archive.put(
            f"insert or replace into {table} values (?, ?)",  # noqa: S608 (one of two constants)
            report.sequence,
            lambda: compress_report(report),
            size_bytes=(1 + len(report.nodes)) * _NODE_BYTES,
        )
        self._archive.put(
            f"delete from {table} where sequence <= "  # noqa: S608 (one of two constants)
            f"(select sequence from {table} order by sequence desc limit 1 offset ?)",
            self._limits[table],
        )


def _page(database: sqlite3.Connection, table: str, sequence: int, limit: int, losses: Losses) -> pb.HistoryReply:
    latest = f"select sequence from {table} where sequence > ? order by sequence desc limit ?"  # noqa: S608 (one of two names)
    first = f"select min(sequence) from ({latest})"  # noqa: S608 (as above)
    rows = database.execute(
        f"select sequence, body from {table} where sequence >= ({first}) order by sequence",  # noqa: S608 (as above)
        (sequence, limit),
    )
    reply = pb.HistoryReply()
    size_bytes = 0
    for row_sequence, body in rows:
        try:
            message = _message(body)
        except Exception as problem:  # as in `_readable`: an unreadable row does not hide others
            losses.add("row_read", problem, sequence=row_sequence)
            continue
        size_bytes += message.ByteSize()
        if reply.reports and size_bytes > PAGE_BYTES:
            reply.has_more = True
            break
        reply.reports.append(message)
    return reply


def _message(body: bytes) -> pb.Report:
    """Decodes a row. Raises: errors of zstandard and protobuf; CorruptData for numbers that are not finite."""
    message = pb.Report.FromString(decompress_body(body))
    if not is_finite(message):
        raise CorruptData(
            "cannot show a report: it contains a number that is not finite; it is left out",
            code="report.not_finite",
        )
    return message


def _slim(report: Report) -> Report:
    nodes = tuple(replace(node, errors=()) if node.errors else node for node in report.nodes)
    return replace(report, events=(), nodes=nodes, plugin_kinds=())
