"""Processes of the benchmark: the report source and the web process, ended when the block ends."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.fakes.control_plane import TOKEN

START_S = 120.0


@dataclass(kw_only=True)
class RunningReportSource:
    """A running report source."""

    dataflow: str
    fleet: str
    process: Process

    async def say(self, words: str) -> None:
        """Sends a command to the report source."""
        assert self.process.stdin is not None  # requested with PIPE
        self.process.stdin.write(f"{words}\n".encode())
        await self.process.stdin.drain()


@dataclass(kw_only=True)
class Web:
    """A running web process."""

    login_url: str
    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Returns the CPU seconds used so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        """Returns its resident memory."""
        return int(self.process.memory_info().rss)


@asynccontextmanager
async def running_report_source(nodes: int, directory: Path) -> AsyncIterator[RunningReportSource]:
    """Starts the report source for this many nodes."""
    arguments = ["-m", "benchmarks.web_load.report_source", "--nodes", str(nodes), "--directory", str(directory)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE)
    try:
        addresses = json.loads(await _line(process, "{"))
        yield RunningReportSource(dataflow=addresses["dataflow"], fleet=addresses["fleet"], process=process)
    finally:
        await _ended(process)


@asynccontextmanager
async def web_process(feed: RunningReportSource, directory: Path, *, port: int = 0) -> AsyncIterator[Web]:
    """Starts `python -m web`, as users run it."""
    arguments = ["-m", "web", "--dataflow", feed.dataflow, "--fleet", feed.fleet, "--directory", str(directory)]
    environment = os.environ | {"ASTRAFLOW_TOKEN": TOKEN}
    log = (directory / "web.log").open("ab")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--port", str(port), stdout=PIPE, stderr=log, env=environment
    )
    try:
        address = (await _line(process, "ready ")).removeprefix("ready ").strip()
        link = (directory / "login-link").read_text()
        yield Web(login_url=link, address=address, process=psutil.Process(process.pid))
    finally:
        log.close()
        await _ended(process)


async def _line(process: Process, begins: str) -> str:
    """Returns the first line that begins like that; logs may precede it."""
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        while line := (await process.stdout.readline()).decode():
            if line.startswith(begins):
                return line
    raise RuntimeError(f"process {process.pid} ended before it said {begins!r}")


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()
