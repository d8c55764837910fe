"""Processor time of one update in the page's process, by part; without browsers, sockets, database and requests.

    python -m benchmarks.web_load.updates [--nodes 1000] [--updates 30]

Prepared reports pass through the parts that handle each report. Processor time, unlike delays, can be compared on a
machine with other work.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import psutil

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.runtime.clock import SystemClock
from astraflow.wire.channel import ServiceChannel
from astraflow.wire.codecs.converter import to_message
from astraflow.wire.pb import control_plane_pb2 as pb
from benchmarks.web_load.browsers import VIEWS
from benchmarks.web_load.report_source import BEGIN, MADE, LargeRun
from web.__main__ import GC_THRESHOLDS
from web.components.layout import header_texts, header_view
from web.components.rendering import PageRenderer, compile_templates
from web.history.report_checker import ReportChecker
from web.history.samples import NodeBuckets
from web.live.collector import NODES_PER_S
from web.live.followed_run import _region_renderer
from web.live.frames import FrameBuilder
from web.live.live_nodes import LiveNodes
from web.process_settings import Settings
from web.state.fleet_state import FleetState
from web.state.run_state import RunState

PAST_S = 900
"""Seconds of history before the first update, as in a process that runs for some time."""

TURNS = 100
"""Turns that other tasks get between two reports: enough to decode 10,000 nodes."""


class Stopwatch:
    """Sums processor seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Adds the processor time of a block."""
        began_s = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began_s


class PreparedStream:
    """Connection that sends prepared reports."""

    def __init__(self, reports: list[bytes], updates: int) -> None:
        self.channel = grpc.aio.insecure_channel("127.0.0.1:1")
        self._reports = reports
        self._updates = updates

    async def stream(self, method: Any, request: Any, *, timeout_s: float | None) -> AsyncIterator[pb.Report]:
        """Yields the reports in turn, with growing sequence and time."""
        for number in range(self._updates):
            report = pb.Report.FromString(self._reports[number % len(self._reports)])
            report.at += number - number % len(self._reports)
            report.sequence = BEGIN + number
            for _ in range(TURNS):
                await asyncio.sleep(0)
            yield report


async def measure(reports: list[bytes], updates: int) -> dict[str, float]:
    """Returns processor seconds of all updates, by part."""
    watch, clock = Stopwatch(), SystemClock()
    state, fleet = RunState(clock), FleetState(clock, is_absent=True)
    pages = PageRenderer(Settings(directory=Path()), state, fleet, name=str, alerts=int)
    frames = FrameBuilder(
        state,
        render_regions=_region_renderer(pages, fleet, lambda: state.problems),
        build="",
        extra_texts=lambda: header_texts(header_view(state.report, fleet, alerts=0)),
    )
    buckets, checker = NodeBuckets(), ReportChecker()
    nodes = LiveNodes(state, buckets, instance_source=None, clock=clock)
    past = LargeRun(nodes=())
    for sequence in range(BEGIN - PAST_S, BEGIN):
        state.add_past_report(past.report(sequence, is_history=True))
    client = ControlPlaneClient(cast("ServiceChannel", PreparedStream(reports, updates)))
    stream = client.watch_report(nodes_per_s=NODES_PER_S)
    shown = dict.fromkeys(VIEWS, -1)
    compile_templates()
    for _ in range(updates):
        with watch.measuring("parse and decode"):
            report = await anext(stream)
        with watch.measuring("check"):
            report = checker.checked(report)
        with watch.measuring("state"):
            point = state.update(report)
        with watch.measuring("samples of nodes"):
            buckets.add(report)
        with watch.measuring("frame"):
            frames.frame(report, [point] if point is not None else [])
        with watch.measuring("table of nodes"):
            await nodes.table()
        with watch.measuring("rows of ten queries"):
            for query in VIEWS:
                shown[query], _ = await nodes.update_for(query, shown[query])
    return watch.seconds


def main(nodes: int, updates: int) -> None:
    """Prints milliseconds per update, by part."""
    run = LargeRun(nodes=tuple(f"node-{index:05}" for index in range(nodes)))
    reports = [to_message(run.report(BEGIN + second), pb.Report).SerializeToString() for second in range(MADE)]
    del run
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    seconds = asyncio.run(measure(reports, updates))
    rss_mb = psutil.Process().memory_info().rss / 1e6
    print(f"{nodes:,} nodes, {updates} updates, RSS {rss_mb:.0f} MB")  # noqa: T201 (a benchmark)
    for name, total_s in (*seconds.items(), ("all", sum(seconds.values()))):
        print(f"{name:20} {1000 * total_s / updates:7.1f} ms per update")  # noqa: T201 (a benchmark)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=30)
    chosen = parser.parse_args()
    main(chosen.nodes, chosen.updates)
