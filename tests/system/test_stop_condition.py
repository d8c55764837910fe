"""The stop condition of a recipe, with every service started by itself, as Compose does, without a supervisor."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from astraflow.cli.ports import free_ports
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.report import Report
from astraflow.wire.channel import dial
from tests.system.processes import PATIENCE_S, ROOT, assert_balanced, command

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

TOKEN = "a-token-for-tests"
STEPS = 8


@dataclass(kw_only=True)
class Services:
    """Processes of one run, by name."""

    directory: Path
    dataflow: str
    weights: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command("serve", *arguments),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "ASTRAFLOW_TOKEN": TOKEN},
            )
        self.processes[name] = process
        return process

    def start_dataflow(self) -> subprocess.Popen[bytes]:
        return self.start(
            "dataflow",
            *("dataflow", "smoke", "--weights", self.weights, "--port", self.dataflow.rpartition(":")[2]),
            *("--directory", str(self.directory / "dataflow")),
            *("--set", f"stop.steps={STEPS}", "--set", "stop.reward=2.0"),
        )

    def start_trainer(self) -> subprocess.Popen[bytes]:
        where = ("--dataflow", self.dataflow, "--directory", str(self.directory / "trainer"))
        return self.start("trainer", "trainer", "smoke", *where)

    def start_node(self) -> subprocess.Popen[bytes]:
        return self.start("node", "node", "smoke", "--dataflow", self.dataflow, "--name", "node")

    async def until(self, holds: Callable[[Report], bool]) -> Report:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                async with dial(self.dataflow, token=TOKEN) as link:
                    if holds(report := await ControlPlaneClient(link).report()):
                        return report
            except AstraFlowError:
                pass  # wait for its start
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)

    def code(self, name: str) -> int:
        """Waits until the process ends by itself; returns its exit code."""
        return self.processes[name].wait(timeout=PATIENCE_S)


@contextmanager
def started(directory: Path) -> Iterator[Services]:
    first, second = free_ports(2)
    services = Services(directory=directory, dataflow=f"127.0.0.1:{first}", weights=f"127.0.0.1:{second}")
    try:
        services.start("weights", "weights", "smoke", "--port", str(second), "--directory", str(directory / "weights"))
        services.start_dataflow()
        services.start_trainer()
        services.start_node()
        yield services
    finally:
        for process in services.processes.values():
            process.kill()
            process.wait()


async def test_a_run_of_separate_services_ends_at_its_stop_condition_and_stays_complete(tmp_path: Path) -> None:
    with started(tmp_path) as services:
        report = await services.until(lambda report: report.completion is not None)
        assert report.completion is not None
        assert (report.completion.ends_run, report.completion.has_learned) == (True, False)
        assert (services.code("trainer"), services.code("node")) == (0, 0)
        services.processes["dataflow"].send_signal(signal.SIGKILL)
        services.processes["dataflow"].wait()
        services.start_dataflow()
        services.start_trainer()
        services.start_node()
        assert (services.code("trainer"), services.code("node")) == (0, 0)
        again = await services.until(lambda report: report.completion is not None)
        assert again.completion == report.completion
        assert again.streams[0].training.steps == STEPS
        assert_balanced(again)


async def test_a_signal_before_completion_has_a_nonzero_exit_code(tmp_path: Path) -> None:
    with started(tmp_path) as services:
        await services.until(lambda report: report.streams[0].training.steps >= 1)
        for name in ("node", "trainer"):
            services.processes[name].terminate()
        assert {services.code(name) for name in ("node", "trainer")} == {128 + signal.SIGTERM}
