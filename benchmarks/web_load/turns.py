"""Longest turns of the event loop in the page's process: for so long may a request wait. Without browsers and database.

    python -m benchmarks.web_load.turns [--nodes 10000] [--reports 15]

A collector follows prepared reports, and ten queries of the node table follow each of them. Processor time between two
turns of another task, unlike delays of requests, can be compared on a machine with other work.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import grpc

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.reports.report import Report
from astraflow.dataflow.operations.control_servicer import nodes_interval
from astraflow.runtime.clock import SystemClock
from astraflow.wire.channel import ServiceChannel
from astraflow.wire.codecs.converter import to_message
from astraflow.wire.pb import control_plane_pb2 as pb
from benchmarks.web_load.browsers import VIEWS
from benchmarks.web_load.report_source import BEGIN, LargeRun
from web.__main__ import GC_THRESHOLDS
from web.alerting.evaluation import RuleWatch
from web.alerting.rules import RuleSpec
from web.alerting.run_watch import RunWatch
from web.components.layout import header_texts, header_view
from web.components.rendering import PageRenderer, compile_templates
from web.history.points import Point
from web.history.samples import NodeBuckets, Sample, TimeShares
from web.live.collector import Collector
from web.live.followed_run import _region_renderer
from web.live.frames import FrameBuilder
from web.live.live_nodes import LiveNodes
from web.process_settings import Settings
from web.state.fleet_state import FleetState
from web.state.run_state import RunState

TURNS = 160
"""Turns that other tasks get between two reports: enough to decode 10,000 nodes and to build their table."""

FIRST_REPORTS = 3
"""Reports before the measurement, at which templates are compiled and caches filled."""


class PreparedStream:
    """Connection that sends prepared reports as a dataflow service does, parsed in the event loop as by gRPC."""

    def __init__(self, nodes: int, reports: int) -> None:
        self.channel = grpc.aio.insecure_channel("127.0.0.1:1")
        self._nodes = nodes
        self._reports = reports
        run = LargeRun(nodes=tuple(f"node-{index:05}" for index in range(nodes)))
        messages = [to_message(run.report(BEGIN + second), pb.Report) for second in range(2)]
        self._full = [message.SerializeToString() for message in messages]
        for message in messages:
            message.ClearField("nodes")
            message.is_without_nodes = True
        self._light = [message.SerializeToString() for message in messages]

    async def stream(
        self, method: Any, request: pb.WatchReportRequest, *, timeout_s: float | None
    ) -> AsyncIterator[pb.Report]:
        """Yields the reports in turn, with growing sequence and time."""
        interval = nodes_interval(self._nodes, request.nodes_per_s)
        for number in range(self._reports):
            sequence = BEGIN + number
            prepared = self._full if number == 0 or sequence % interval == 0 else self._light
            messages = [pb.Report.FromString(prepared[number % 2])]
            messages[0].sequence, messages[0].at = sequence, 1.8e9 + sequence
            yield messages.pop()
            for _ in range(TURNS):
                await asyncio.sleep(0)
        await asyncio.Event().wait()


RULES = 100
"""Rules of alerts on a value of every node."""


class Recorder:
    """Recorder and evaluation of alerts, without a database."""

    def __init__(self) -> None:
        self._buckets = NodeBuckets()
        self._alerts = RunWatch("run")
        for number in range(RULES):
            fields = {"name": str(number), "series": "node/*", "value": "lag", "condition": "above", "threshold": 1e9}
            self._alerts.put(number, RuleWatch(RuleSpec.parse(fields, where=""), since=0.0), since=0.0)

    @property
    def shares(self) -> Mapping[str, TimeShares]:
        """Time shares by node name."""
        return self._buckets.shares

    async def recorded_until(self, run: str) -> int:
        """Returns a sequence after all reports: nothing is fetched."""
        return 10**9

    def add(self, report: Report, point: Point | None) -> list[Sample]:
        """Adds the nodes of a report; returns the samples of the ten seconds that it ends."""
        return self._buckets.add(report)

    def observe(self, run: str, report: Report, samples: Iterable[Sample], fleet: object = None) -> None:
        """Evaluates the rules."""
        self._alerts.observe(report, samples)


class Source(ControlPlaneClient):
    """Client without a history."""

    async def iterate_history(self, **_: Any) -> AsyncIterator[Report]:
        """Yields nothing."""
        for report in list[Report]():
            yield report


async def longest_turns(stream: PreparedStream, reports: int) -> list[float]:
    """Returns the processor seconds of all turns after the first reports, the longest first."""
    clock = SystemClock()
    state, fleet, recorder = RunState(clock), FleetState(clock, is_absent=True), Recorder()
    pages = PageRenderer(Settings(directory=Path()), state, fleet, name=str, alerts=int)
    frames = FrameBuilder(
        state,
        render_regions=_region_renderer(pages, fleet, lambda: state.problems),
        build="",
        extra_texts=lambda: header_texts(header_view(state.report, fleet, alerts=0)),
    )
    nodes = LiveNodes(state, recorder, instance_source=None, clock=clock)
    compile_templates()
    shown, seconds, received = dict.fromkeys(VIEWS, -1), list[float](), 0
    moved, has_all = asyncio.Event(), asyncio.Event()

    def on_points(report: Report, points: list[Point]) -> None:
        nonlocal received
        frames.frame(report, points)
        received += 1
        if received == FIRST_REPORTS:
            seconds.clear()
        if received == reports:
            has_all.set()
        moved.set()

    async def follow_tables() -> None:
        while True:
            await moved.wait()
            moved.clear()
            for query in VIEWS:
                shown[query], _ = await nodes.update_for(query, shown[query])

    async def measure() -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            seconds.append(now_s - last_s)
            last_s = now_s

    source = Source(cast("ServiceChannel", stream))
    collector = Collector(
        source, state, recorder=recorder, observer=recorder, clock=clock, on_points=on_points, on_feed=lambda: None
    )
    tasks = [asyncio.create_task(work()) for work in (follow_tables, collector.run, measure)]
    await has_all.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    return sorted(seconds, reverse=True)


def main(nodes: int, reports: int) -> None:
    """Prints the longest turns."""
    stream = PreparedStream(nodes, reports)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    seconds = asyncio.run(longest_turns(stream, reports))
    per_report_ms = 1000 * sum(seconds) / (reports - FIRST_REPORTS)
    turns = " ".join(f"{1000 * turn_s:.1f}" for turn_s in seconds[:12])
    print(f"{nodes:,} nodes: {per_report_ms:.1f} ms per report; longest turns (ms): {turns}")  # noqa: T201 (a benchmark)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=15)
    chosen = parser.parse_args()
    main(chosen.nodes, chosen.reports)
