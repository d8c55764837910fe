"""Reports of the last minutes, durable, and whoever waits for the next one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from astraflow.contract.reports import Report
from astraflow.dataflow.journal import Journal
from astraflow.wire.codec_control import decode_report, encode_report
from astraflow.wire.pb import control_plane_pb2 as pb


class History:
    """The latest `limit` reports, kept without events and nodes' errors, which repeat from report to report."""

    def __init__(self, journal: Journal, limit: int) -> None:
        self._journal = journal
        self._limit = limit
        rows = journal.rows("select body from reports order by sequence desc limit ?", (limit,))
        recovered = [decode_report(pb.Report.FromString(body)) for (body,) in reversed(rows)]
        self._reports: deque[Report] = deque(recovered, maxlen=limit)
        self._latest: Report | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False

    @property
    def next_sequence(self) -> int:
        """One more than the last; it grows over restarts."""
        return self._reports[-1].sequence + 1 if self._reports else 1

    def add(self, report: Report) -> None:
        """Keep a report and wake those who watch."""
        slim = _slim(report)
        self._reports.append(slim)
        self._journal.put(
            "insert or replace into reports values (?, ?)", slim.sequence, encode_report(slim).SerializeToString()
        )
        self._journal.put("delete from reports where sequence <= ?", slim.sequence - self._limit)
        self._latest = report
        self._changed.set()
        self._changed = asyncio.Event()

    def after(self, sequence: int, *, limit: int) -> list[Report]:
        """Reports with a greater sequence, oldest first; at most the latest `limit`."""
        return [report for report in self._reports if report.sequence > sequence][-limit:] if limit else []

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


def _slim(report: Report) -> Report:
    return replace(report, events=(), nodes=tuple(replace(node, errors=()) for node in report.nodes))
