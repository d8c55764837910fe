"""Process that reports once a second for many nodes, and runs a fleet service, as sources for the web process.

    python -m benchmarks.web_load.report_source --nodes 1000 --directory DIR

Prints the addresses of dataflow and of the fleet service. Reports are prepared in advance and sent in turn, so that
this process uses little of the measured machine; each contains the time of its sending. A line on its input controls
it: `away` stops sending, `back S` continues S seconds later in the run, `end` ends it.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.report import NodeReport, NodeState
from astraflow.contract.rollouts.agent_calls import MAX_REPORTED_SESSIONS
from astraflow.dataflow.history.history import PAGE_BYTES
from astraflow.dataflow.operations.control_servicer import nodes_interval
from astraflow.wire.codecs.converter import to_message
from astraflow.wire.pb import control_plane_pb2 as pb
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.synthetic_run import SyntheticRun

MADE = 6
"""Distinct prepared seconds; every number of every node differs between them."""

BEGIN = 1000


class LargeRun(SyntheticRun):
    """A run in which all nodes are ready from the start, without evaluations. Dataflow reports few of its sessions."""

    def rounds(self, sequence: int, *, limit: int | None = None) -> list[EvaluationReport]:
        """Returns no rounds."""
        return []

    def _state(self, node: str, sequence: int, index: int) -> NodeState:
        return NodeState.DRAINING if node in self.draining else NodeState.READY

    def _node(self, name: str, index: int, sequence: int, is_history: bool) -> NodeReport:
        node = super()._node(name, index, sequence, is_history)
        return node if index < MAX_REPORTED_SESSIONS else replace(node, sessions=())


class ReportSource(FakeControlPlane):
    """Sends prepared reports with the current time."""

    synthetic_run: SyntheticRun

    def __init__(self, nodes: int) -> None:
        super().__init__(LargeRun(nodes=tuple(f"node-{index:05}" for index in range(nodes))), sequence=BEGIN)
        reports = [self.synthetic_run.report(BEGIN + second) for second in range(MADE)]
        self._prepared = {
            True: [to_message(report, pb.Report) for report in reports],
            False: [to_message(replace(report, nodes=()), pb.Report) for report in reports],
        }
        for message in self._prepared[False]:
            message.is_without_nodes = True
        self._past = LargeRun(nodes=())

    def report_at(self, sequence: int, *, at: float, has_nodes: bool) -> pb.Report:
        """Returns the report of a second, with all its nodes or none."""
        report = self._prepared[has_nodes][sequence % MADE]
        report.sequence, report.at, report.uptime_s = sequence, at, float(sequence)
        return report

    async def WatchReport(self, request: pb.WatchReportRequest, context: Any) -> AsyncIterator[pb.Report]:
        sent = 0
        while True:
            async with self._moved:
                while self.sequence <= sent:
                    await self._moved.wait()
                is_first, sent = sent == 0, self.sequence
            interval = nodes_interval(len(self.synthetic_run.nodes), request.nodes_per_s)
            yield self.report_at(sent, at=time.time(), has_nodes=is_first or sent % interval == 0)

    async def History(self, request: pb.HistoryRequest, context: Any) -> pb.HistoryReply:
        """Seconds of the run without its nodes, as dataflow stores them for a large run, in dataflow's page size."""
        kept = 900 if request.resolution_s <= 1 else 0
        first = max(request.after_sequence + 1, self.sequence - min(request.limit, kept) + 1, 1)
        now, reply, size_bytes = time.time(), pb.HistoryReply(), 0
        for sequence in range(first, self.sequence + 1 if kept else first):
            report = to_message(self._past.report(sequence, is_history=True), pb.Report)
            report.at = now - (self.sequence - sequence)
            size_bytes += report.ByteSize()
            if size_bytes > PAGE_BYTES:
                reply.has_more = True
                break
            reply.reports.append(report)
        return reply


async def _commands(feed: ReportSource, telling: asyncio.Event, end: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        match line:
            case ["away"]:
                telling.clear()
            case ["back", seconds]:
                await feed.advance(int(seconds))
                telling.set()
            case ["ahead", seconds]:
                await feed.advance(int(seconds))
            case _:
                break
    end.set()


async def _run(nodes: int, directory: Path) -> None:
    feed = ReportSource(nodes)
    gc.freeze()  # freezes the prepared reports: collecting them repeatedly would delay the fleet service
    telling, end = asyncio.Event(), asyncio.Event()
    telling.set()
    async with feed.serving() as dataflow, running_fleet(directory, nodes=2, pool={"max_nodes": 500}) as fleet:
        print(json.dumps({"dataflow": dataflow, "fleet": fleet.address}), flush=True)  # noqa: T201 (for the benchmark)
        commands = asyncio.create_task(_commands(feed, telling, end))
        due = time.monotonic()
        while not end.is_set():
            due += 1.0
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await telling.wait()
            await feed.advance()
        commands.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    chosen = parser.parse_args()
    asyncio.run(_run(chosen.nodes, chosen.directory))
