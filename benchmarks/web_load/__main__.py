"""CPU of the web process and delay of its pages, with many nodes and many browsers.

    python -m benchmarks.web_load [--case 1000x200] [--case 10000x50] [--seconds 60] [--chromium]

A report source sends reports about this many nodes once a second; this many browsers listen, half of them to a table of
nodes in one of ten views; another one reads, plans, applies and filters tables meanwhile. CPU is the web process's own
time, over all its threads, in per cent of one core. Targets are the dashboard's.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.web_load.browsers import VIEWS, BrowserMeasurements, ask, listen, logged_in, percentile_ms
from benchmarks.web_load.chromium import measure_pages
from benchmarks.web_load.outage import measure_outage
from benchmarks.web_load.processes import running_report_source, web_process

SETTLE_S = 6.0
OPEN_EVERY_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table."""

    what: str
    found: str
    target: str
    is_met: bool | None = None


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="nodes x browsers; 1000x200 and 10000x50 by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure each case for (default %(default)s)")
    parser.add_argument("--chromium", action="store_true", help="also look at pages in Chromium, for two minutes")
    parser.add_argument(
        "--outage", action="store_true", help="also end the web process, and begin it ten minutes later"
    )
    chosen = parser.parse_args(arguments)
    console = Console()
    for case in chosen.case or ["1000x200", "10000x50"]:
        nodes, browsers = map(int, case.split("x"))
        lines = asyncio.run(
            _case(nodes, browsers, chosen.seconds, has_chromium=chosen.chromium, has_outage=chosen.outage)
        )
        table = Table("what", "measured", "target", title=f"{nodes:,} nodes, {browsers} browsers")
        for line in lines:
            mark = {None: "", True: " ✓", False: " ✗"}[line.is_met]
            table.add_row(line.what, line.found, f"{line.target}{mark}")
        console.print(table)
    return 0


async def _case(nodes: int, browsers: int, seconds: float, *, has_chromium: bool, has_outage: bool) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with running_report_source(nodes, directory / "fleet") as feed:
            async with web_process(feed, directory) as web, logged_in(web) as client:
                measurements, took = BrowserMeasurements(), dict[str, list[float]]()
                async with asyncio.TaskGroup() as tasks:
                    working = [
                        tasks.create_task(
                            listen(
                                web,
                                client,
                                measurements,
                                rows=VIEWS[number // 2 % len(VIEWS)] if number % 2 else None,
                                begin_s=number * OPEN_EVERY_S,
                            )
                        )
                        for number in range(browsers)
                    ]
                    await asyncio.sleep(SETTLE_S + browsers * OPEN_EVERY_S)
                    working.append(tasks.create_task(ask(client, took, every_s=1.0)))
                    await asyncio.sleep(2.0)
                    measurements.clear()
                    took.clear()
                    began, used = time.monotonic(), web.cpu_s()
                    await asyncio.sleep(seconds)
                    passed, busy = time.monotonic() - began, web.cpu_s() - used
                    rss = web.rss_bytes()
                    for task in working:
                        task.cancel()
                lines = _lines(nodes, measurements, took, passed_s=passed, busy_s=busy, rss_bytes=rss)
                if has_chromium:
                    lines += [
                        Line(what=what, found=figure, target=target)
                        for what, figure, target in await measure_pages(web, client)
                    ]
            if has_outage:
                lines += [
                    Line(what=what, found=figure, target=target)
                    for what, figure, target in await measure_outage(feed, directory)
                ]
    return lines


def _lines(
    nodes: int,
    measurements: BrowserMeasurements,
    took: dict[str, list[float]],
    *,
    passed_s: float,
    busy_s: float,
    rss_bytes: int,
) -> list[Line]:
    is_large = nodes > 1000
    load = os.getloadavg()[0]
    cpu, most = 100 * busy_s / passed_s, 25 if is_large else 10
    rss, missed = rss_bytes / 1e6, _missed(measurements.sequences)
    lines = [
        Line(what="machine", found=f"{os.cpu_count()} cores, load {load:.1f}", target=""),
        Line(what="web CPU, one core", found=f"{cpu:.1f} %", target=f"<= {most} %", is_met=cpu <= most),
        Line(what="web RSS", found=f"{rss:.0f} MB", target="" if is_large else "<= 150 MB",
             is_met=None if is_large else rss <= 150),
        _limit("update p50, dataflow to browser", measurements.end_to_end_s, 50, None),
        _limit("update p99, dataflow to browser", measurements.end_to_end_s, 99, 500),
        _limit("push p99, first browser to each", measurements.push_s, 99, 250),
        Line(what="traffic", found=f"{measurements.size / passed_s / 1e6:.2f} MB/s", target=""),
        Line(what="messages about rows", found=f"{measurements.rows / passed_s:.0f} a second", target=""),
        Line(what="frames missed", found=str(missed), target="0", is_met=not missed),
        _limit("node table page p50", took.get("table", []), 50, 150 if is_large else None),
        _limit("node table page p99", took.get("table", []), 99, None),
        _limit("REST read p99", took.get("read", []), 99, 50),
        _limit("REST plan p99", took.get("plan", []), 99, 100),
        _limit("REST apply p99", took.get("apply", []), 99, 150),
    ]  # fmt: skip
    refused = {name: len(times_s) for name, times_s in took.items() if name[-1].isdigit()}
    return [*lines, Line(what="answers that were not a success", found=str(refused or "none"), target="none")]


def _limit(what: str, times_s: list[float], percent: float, most_ms: float | None) -> Line:
    value = percentile_ms(times_s, percent)
    target, is_met = ("", None) if most_ms is None else (f"<= {most_ms:g} ms", value <= most_ms)
    return Line(what=what, found=f"{value:.0f} ms of {len(times_s)}", target=target, is_met=is_met)


def _missed(sequences: set[int]) -> int:
    return max(sequences) - min(sequences) + 1 - len(sequences) if sequences else 0


if __name__ == "__main__":
    sys.exit(main())
