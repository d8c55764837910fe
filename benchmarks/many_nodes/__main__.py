"""Load test: thousands of simulated nodes on one dataflow process, over real gRPC on loopback.

    python -m benchmarks.many_nodes [--nodes 5000] [--seconds 60] [--processes 4] [--json FILE]

A dataflow process (durable), a watcher of the report, and client processes that share the nodes. Each node has a
connection of its own, sends heartbeats with all metrics, and runs one episode at a time: it leases a task, waits, and
pushes the result. The episode's duration follows from `--sequences-per-s`, the rate of all nodes together. All join at
once; then the measurement lasts `--seconds`. It stops after `--limit-s`. No trainer takes part: the groups stay open
longer than the measurement, because their members run on different nodes.

CPU is process time in per cent of one core. Latencies contain the wait of the client process, which shares the cores.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.wire.channel import dial
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.pb.control_plane_pb2_grpc import ControlPlaneStub
from benchmarks.dataflow.__main__ import TOKEN, Dataflow
from benchmarks.many_nodes.nodes import Fleet

PROGRAM = "benchmarks.many_nodes.dataflow_process"
SETTLE_S = 5.0
REPORT_EVERY_S = 5.0
REPORT_TIMEOUT_S = 30.0
WATCHED_NODES_PER_S = 1000
"""Nodes that the watcher decodes a second, as the web page does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Parameters of a load test."""

    nodes: int = 5000
    seconds: float = 60.0
    processes: int = 4
    """Client processes that share the nodes."""
    heartbeat_s: float = 30.0
    report_s: float = 10.0
    sequences_per_s: float = 80.0
    """Results of all nodes together."""
    tokens: int = 4096
    limit_s: float = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Calls of one kind: calls a second, and milliseconds of the median and the 99th percentile."""

    per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Figures of a load test."""

    load: Load
    joins_per_s: float
    join_cpu_ms: float
    """CPU of dataflow for one join and what the joined nodes do meanwhile. Milliseconds."""
    calls: dict[str, Rates]
    report_bytes: int
    watched_per_s: float
    """Reports that the watcher received a second."""
    dataflow_cpu: float
    """Cores."""
    clients_cpu: float
    """Cores of the client processes."""
    memory_per_node_kb: float
    """Growth of dataflow's resident memory from no node to all nodes, for one node."""
    peak_mb: float
    clients_mb: float
    ready: int
    """Ready nodes in the last report."""
    errors: dict[str, int]


class Clients:
    """Client processes of a load."""

    def __init__(self, load: Load, address: str) -> None:
        share = -(-load.nodes // load.processes)
        self.processes = [
            _client(
                Fleet(
                    address=address,
                    first=first,
                    nodes=min(share, load.nodes - first),
                    heartbeat_s=load.heartbeat_s,
                    episode_s=load.nodes / load.sequences_per_s,
                    tokens=load.tokens,
                )
            )
            for first in range(0, load.nodes, share)
        ]

    async def read(self) -> list[dict[str, Any]]:
        """Returns the next line of each process. Raises: SystemExit when one failed."""
        lines = await asyncio.gather(*(asyncio.to_thread(_line, process) for process in self.processes))
        return [json.loads(line) for line in lines]

    def tell(self, word: str) -> None:
        """Sends a line to each process."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(word + "\n")
            process.stdin.flush()

    def memory_mb(self) -> float:
        """Returns the resident memory of all processes."""
        return sum(psutil.Process(process.pid).memory_info().rss for process in self.processes) / 2**20

    def close(self) -> None:
        """Ends the processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.communicate()


async def measure(load: Load) -> Result:
    """Runs a load test. Raises: TimeoutError after `limit_s`."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="astraflow-many-nodes-"))
        settings = (
            f"dataflow.heartbeat_s={load.heartbeat_s}",
            f"dataflow.lease_s={6 * load.heartbeat_s}",
            f"dataflow.report_s={load.report_s}",
        )
        running = Dataflow(Path(folder), is_durable=True, program=PROGRAM, settings=settings)
        stack.callback(running.close)
        async with asyncio.timeout(load.limit_s):
            return await _measure(load, running, stack)


async def _measure(load: Load, running: Dataflow, stack: ExitStack) -> Result:
    memory_mb, cpu_s = running.memory_mb(), running.cpu_s()
    clients = Clients(load, running.address)
    stack.callback(clients.close)
    joins = await clients.read()
    join_cpu_ms = 1000 * (running.cpu_s() - cpu_s) / load.nodes
    await asyncio.sleep(SETTLE_S + load.heartbeat_s)
    clients.tell("measure")
    began, cpu_s = time.monotonic(), running.cpu_s()
    report_ms, watched, last = await _read_reports(running, load.seconds)
    seconds, dataflow_cpu_s = time.monotonic() - began, running.cpu_s() - cpu_s
    clients.tell("stop")
    figures = await clients.read()
    grown_mb = running.memory_mb() - memory_mb
    calls = {kind: [ms for each in figures for ms in each[f"{kind}_ms"]] for kind in ("heartbeat", "lease", "push")}
    errors: dict[str, int] = {}
    for each in figures:
        for code, count in each["errors"].items():
            errors[code] = errors.get(code, 0) + count
    joined_s = max(each["ended_at"] for each in joins) - min(each["began_at"] for each in joins)
    return Result(
        load=load,
        joins_per_s=load.nodes / joined_s,
        join_cpu_ms=join_cpu_ms,
        calls={kind: _rates(values, seconds) for kind, values in {**calls, "report": report_ms}.items()},
        report_bytes=last.ByteSize(),
        watched_per_s=watched / seconds,
        dataflow_cpu=dataflow_cpu_s / seconds,
        clients_cpu=sum(each["cpu_s"] for each in figures) / seconds,
        memory_per_node_kb=1024 * grown_mb / load.nodes,
        peak_mb=running.peak_mb(),
        clients_mb=clients.memory_mb(),
        ready=sum(pool.ready for pool in last.pools),
        errors=errors,
    )


async def _read_reports(running: Dataflow, seconds: float) -> tuple[list[float], int, pb.Report]:
    """Reads and watches reports; returns milliseconds of each call, the number of watched reports and the last one."""
    report_ms: list[float] = []
    watched = 0

    async def watch(client: ControlPlaneClient) -> None:
        nonlocal watched
        async for _ in client.watch_report(nodes_per_s=WATCHED_NODES_PER_S):
            watched += 1

    async with dial(running.address, token=TOKEN) as link:
        watching = asyncio.create_task(watch(ControlPlaneClient(link)))
        stub = ControlPlaneStub(link.channel)
        end_at = time.monotonic() + seconds
        while True:
            began = time.perf_counter()
            report = await link.call(stub.GetReport, pb.GetReportRequest(), timeout_s=REPORT_TIMEOUT_S)
            report_ms.append(1000 * (time.perf_counter() - began))
            if time.monotonic() >= end_at:
                break
            await asyncio.sleep(REPORT_EVERY_S)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return report_ms, watched, report


def _rates(values_ms: list[float], seconds: float) -> Rates:
    ordered = sorted(values_ms)
    if not ordered:
        return Rates(per_s=0.0, p50_ms=float("nan"), p99_ms=float("nan"))
    last = len(ordered) - 1
    return Rates(per_s=len(ordered) / seconds, p50_ms=ordered[last // 2], p99_ms=ordered[int(0.99 * last)])


def _client(fleet: Fleet) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.many_nodes.nodes", json.dumps(asdict(fleet))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
    )
    assert process.stdin is not None
    process.stdin.write(TOKEN + "\n")
    process.stdin.flush()
    return process


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a client process failed with code {process.wait()}")
    return line


def table(result: Result) -> str:
    """Formats the figures."""
    load = result.load
    calls = {
        kind: f"{rates.per_s:,.0f}/s, {rates.p50_ms:,.1f} / {rates.p99_ms:,.1f} ms"
        for kind, rates in result.calls.items()
    }
    lines = {
        "joins, all at once": f"{result.joins_per_s:,.0f}/s, {result.join_cpu_ms:.2f} ms of dataflow's CPU for each",
        f"heartbeats, each {load.heartbeat_s:g} s, p50 / p99": calls["heartbeat"],
        "leases, p50 / p99": calls["lease"],
        f"pushes of {load.tokens:,} tokens, durable, p50 / p99": calls["push"],
        f"reports ({result.report_bytes / 2**20:.1f} MiB), p50 / p99": calls["report"],
        f"reports to a watcher, each {load.report_s:g} s": f"{result.watched_per_s:.2f}/s",
        "CPU of dataflow": f"{result.dataflow_cpu:.0%} of a core",
        "CPU of the clients": f"{result.clients_cpu:.0%} of a core, {load.processes} processes",
        "memory of dataflow for each node": f"{result.memory_per_node_kb:,.0f} KiB",
        "memory at most, dataflow and clients": f"{result.peak_mb:,.0f} and {result.clients_mb:,.0f} MiB",
        "ready nodes at the end": f"{result.ready:,} of {load.nodes:,}",
        "errors": ", ".join(f"{code}: {count}" for code, count in result.errors.items()) or "none",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in lines.items())])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Load()
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help="default %(default)s")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = vars(parser.parse_args())
    file = options.pop("json")
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n")
    sys.stdout.flush()
    result = asyncio.run(measure(Load(**options)))
    sys.stdout.write(table(result) + "\n")
    if file:
        file.write_text(json.dumps(asdict(result), indent=1))


if __name__ == "__main__":
    main()
