"""A whole run as real processes, for tests: started by the CLI, watched through the control plane, killed by pid."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.report import Report
from astraflow.wire.channel import dial

ROOT = Path(__file__).parents[2]

PATIENCE_S = 60.0
"""Timeout of a test for an expected event; the machine may be busy."""


def command(*arguments: str) -> list[str]:
    """Returns the CLI command with these arguments."""
    return [sys.executable, "-m", "astraflow.cli", *arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRun:
    """A run that continues beside the test."""

    process: subprocess.Popen[str]
    directory: Path

    def pids(self) -> dict[str, int]:
        """Returns the process id of each program of the run."""
        return json.loads((self.directory / "processes.json").read_text())  # type: ignore[no-any-return]  # JSON

    def facts(self) -> dict[str, Any]:
        """Returns the facts that the run wrote about itself."""
        return json.loads((self.directory / "run.json").read_text())  # type: ignore[no-any-return]  # JSON

    def token(self) -> str:
        """Returns the run token."""
        return (self.directory / "token").read_text().strip()

    async def report(self) -> Report:
        """Returns the state of the run; waits while dataflow is away."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                async with dial(self.facts()["dataflow"], token=self.token()) as link:
                    return await ControlPlaneClient(link).report()
            except (AstraFlowError, FileNotFoundError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                await asyncio.sleep(0.1)

    async def until(self, holds: Callable[[Report], bool], *, patience_s: float = PATIENCE_S) -> Report:
        """Returns the first report for which a condition holds."""
        deadline = time.monotonic() + patience_s
        while not holds(report := await self.report()):
            assert time.monotonic() < deadline, f"it did not come to that within {patience_s:.0f} s: {report}"
            await asyncio.sleep(0.1)
        return report

    async def steps_more(self, steps: int) -> Report:
        """Returns the report after that many more trainer steps."""
        before = (await self.report()).streams[0].training.steps
        return await self.until(lambda report: report.streams[0].training.steps >= before + steps)

    def kill(self, program: str) -> None:
        """Sends `kill -9` to the process."""
        os.kill(self.pids()[program], signal.SIGKILL)

    def logged_steps(self, trainer: str) -> list[dict[str, Any]]:
        """Returns the steps that the trainer logged, over all its restarts."""
        lines = (self.directory / "logs" / f"{trainer}.log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in events if event.get("event") == "step"]


@asynccontextmanager
async def running(
    recipe: str,
    directory: Path,
    *options: str,
    output_file: Path | None = None,
    gone_within_s: float = 20.0,
    limit_s: float = 300.0,
) -> AsyncIterator[RunningRun]:
    """Runs `astraflow run RECIPE` until the block ends, then sends Ctrl-C; the run must end within `gone_within_s`.

    said: file for its output; by default beside the run's folder, with `.out` added to its name.
    """
    arguments = command("run", recipe, "--headless", "--limit-s", str(limit_s), "--run-dir", str(directory), *options)
    with (output_file or directory.with_name(f"{directory.name}.out")).open("w") as out:
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=out, stderr=out, text=True)
        run = RunningRun(process=process, directory=directory)
        try:
            yield run
            pids = list(run.pids().values())
            process.send_signal(signal.SIGINT)
            process.wait(timeout=gone_within_s)
            assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "a process was left behind"
        finally:
            process.kill()
            process.wait()


def assert_balanced(report: Report) -> None:
    """Asserts that every group is in exactly one state."""
    for flow in report.flows:
        assert flow.issued == flow.open + flow.admitted + sum(flow.dropped.values())
    for stream in report.streams:
        spread = stream.groups.accounted
        assert stream.groups.admitted == spread
        assert stream.groups.trained == stream.training.steps * stream.batch_groups
