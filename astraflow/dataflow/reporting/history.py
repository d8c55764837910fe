"""Reports of the last minutes and points of the whole run, durable, and whoever waits for the next report."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from astraflow.archive.reports import inflated, packed
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.contract.lookups import RESOLUTIONS_S
from astraflow.contract.reports import Report
from astraflow.contract.values import Json
from astraflow.dataflow.journal import Journal
from astraflow.dataflow.reporting.archive import Archive
from astraflow.dataflow.reporting.losses import Losses
from astraflow.dataflow.reporting.minutes import MINUTE_S, Minutes
from astraflow.wire.codec_control import decode_report
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.requests import is_finite

PAGE_BYTES = 2**20
"""What one answer may hold, as messages: who asks has it as bytes, as messages and as reports at a time."""

_NODE_BYTES = 1000
"""What a node's part of a report holds in memory, roughly."""


class History:
    """Keeps every report of the last minutes, and one point a minute for the run (see `minutes`).

    They are kept without events and nodes' errors, which repeat from report to report. The sequence lives in the
    journal, which is never behind what watchers were shown; the reports themselves are for looks, and in the archive.
    """

    def __init__(self, journal: Journal, archive: Archive, *, seconds: int, minutes: int) -> None:
        """seconds, minutes: how many of each are kept."""
        self._journal = journal
        self._archive = archive
        self._kept = {"seconds": seconds, "minutes": minutes}
        self._sequence = 0
        self._latest: Report | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._restore()

    @property
    def next_sequence(self) -> int:
        """One more than the last; it grows over restarts."""
        return self._sequence + 1

    @property
    def losses(self) -> Losses:
        """What of the reports could not be kept, read or sent."""
        return self._archive.losses

    @property
    def latest(self) -> Report | None:
        """The newest report; None before the first of this process."""
        return self._latest

    def add(self, report: Report) -> None:
        """Keep a report and wake those who watch."""
        self._sequence = report.sequence
        self._journal.touch()
        self._keep("seconds", _slim(report))
        self._count(report)
        self._latest = report
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, sequence: int, *, limit: int, resolution_s: int) -> pb.HistoryReply:
        """Of the latest `limit` reports with a greater sequence the oldest, as many as fit into an answer.

        They are kept in the form in which they are sent, and stay in it.

        resolution_s: 1 (or 0) for every report of the last minutes, 60 for one point a minute of the whole run.
        Raises: InvalidInput for another resolution.
        """
        if resolution_s not in (0, *RESOLUTIONS_S):
            known = " or ".join(str(known) for known in RESOLUTIONS_S)
            raise InvalidInput(f"no history is kept at a resolution of {resolution_s} s: ask for {known}")
        table = "minutes" if resolution_s == MINUTE_S else "seconds"
        after = min(sequence, self._sequence)  # nothing is newer, whatever number was given
        return await self._archive.read(lambda database: _page(database, table, after, limit, self._archive.losses))

    async def all_after(self, sequence: int, *, limit: int, resolution_s: int) -> list[pb.Report]:
        """The same without pages: all of the latest `limit`. Raises: InvalidInput for another resolution."""
        found: list[pb.Report] = []
        while True:
            page = await self.after(sequence, limit=limit, resolution_s=resolution_s)
            found += page.reports
            if not page.has_more:
                return found
            sequence = found[-1].sequence

    async def watch(self) -> AsyncIterator[Report]:
        """The latest report, then each new one until `stop`; a slow watcher skips to the latest."""
        seen = 0
        while True:
            changed = self._changed
            if self._latest is not None and self._latest.sequence > seen:
                seen = self._latest.sequence
                yield self._latest
            elif self._is_stopping:
                return
            else:
                await changed.wait()

    def stop(self) -> None:
        """Let those who watch go."""
        self._is_stopping = True
        self._changed.set()

    def state_dict(self) -> dict[str, Json]:
        """How far it is."""
        return {"sequence": self._sequence}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, or from what the archive has if that is farther."""
        self._sequence = max(self._sequence, state["sequence"])

    def _restore(self) -> None:
        """A minute that was cut by the restart goes on with the reports that are kept of it."""
        saved = self._journal.saved_state("history")
        if saved is not None:
            self.load_state_dict(saved)
        self._journal.keep_state("history", self.state_dict)
        points = self._archive.rows("select sequence, body from minutes order by sequence desc limit 1")
        last = next((self._readable(sequence, body) for sequence, body in points), None)
        since = max((sequence for sequence, _ in points), default=0)
        self._minutes = Minutes(last)
        for sequence, body in self._archive.rows(
            "select sequence, body from seconds where sequence > ? order by sequence", (since,)
        ):
            report = self._readable(sequence, body)
            if report is not None:
                self._count(report)
            self._sequence = max(self._sequence, sequence)
        self._sequence = max(self._sequence, since)

    def _readable(self, sequence: int, body: bytes) -> Report | None:
        """The report of a row; None, counted, for one that this release cannot read or whose figures are not finite."""
        try:
            return decode_report(_message(body))
        except Exception as problem:  # damaged bytes fail in zstandard, protobuf and contract types
            self._archive.losses.add("row_read", problem, sequence=sequence)
            return None

    def _count(self, report: Report) -> None:
        point = self._minutes.add(report)
        if point is not None:
            self._keep("minutes", point)

    def _keep(self, table: str, report: Report) -> None:
        self._archive.put(
            f"insert or replace into {table} values (?, ?)",  # noqa: S608 (one of two names)
            report.sequence,
            lambda: packed(report),
            size_bytes=(1 + len(report.nodes)) * _NODE_BYTES,
        )
        self._archive.put(
            f"delete from {table} where sequence <= "  # noqa: S608 (one of two names)
            f"(select sequence from {table} order by sequence desc limit 1 offset ?)",
            self._kept[table],
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
    for number, body in rows:
        try:
            message = _message(body)
        except Exception as problem:  # as in `_readable`: one bad row hides no other
            losses.add("row_read", problem, sequence=number)
            continue
        size_bytes += message.ByteSize()
        if reply.reports and size_bytes > PAGE_BYTES:
            reply.has_more = True
            break
        reply.reports.append(message)
    return reply


def _message(body: bytes) -> pb.Report:
    """The message of a row. Raises: what zstandard and protobuf raise; CorruptData for figures that are not finite."""
    message = pb.Report.FromString(inflated(body))
    if not is_finite(message):
        raise CorruptData("cannot show a report: it has a figure that is not finite; it is left out")
    return message


def _slim(report: Report) -> Report:
    nodes = tuple(replace(node, errors=()) if node.errors else node for node in report.nodes)
    return replace(report, events=(), nodes=nodes)
