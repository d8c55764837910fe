"""Observer of a run that bypasses the disturbed links: reports, versions, memory."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import Report
from astraflow.contract.weights import VersionNotice
from astraflow.wire.channel import dial
from soak.ledger import Ledger
from soak.processes import TOKEN_OF_RUN
from soak.rules import Invariant, Violation
from soak.topology import DATAFLOW, Topology

EVERY_S = 1.0
SETTLED_S = 2.0
"""Age in seconds at which a process has loaded its state, so its memory is stable."""
PATIENCE_S = 90.0
"""Default of `Monitor.patience_s`."""


@dataclass(slots=True)
class Monitor:
    """Samples of a run, taken once a second."""

    topology: Topology
    directory: Path
    """Folder of the run's state."""
    ledger: Ledger
    patience_s: float = PATIENCE_S
    """Seconds for the run to reach an expected state without faults."""
    violations: list[Violation] = field(default_factory=list)
    reports: int = 0
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Monotonic seconds, and dataflow's resident MiB."""
    disk_max_mib: float = 0.0
    """Largest size of dataflow's directory."""

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            self._note_memory()
            self._note_disk()
            for look in (self._look_at_report, self._look_at_versions):
                try:
                    await asyncio.wait_for(look(), 5 * EVERY_S)
                except (AstraFlowError, TimeoutError):
                    continue  # expected during a soak: dataflow is away or stopped
            await asyncio.sleep(EVERY_S)

    async def report(self) -> Report:
        """Returns the current state of the run. Raises: AstraFlowError while dataflow is away."""
        async with dial(self.topology.dataflow, token=TOKEN_OF_RUN, tls=self.topology.tls) as link:
            return await ControlPlaneClient(link).report()

    async def until(self, holds: Callable[[Report], bool], *, what: str) -> Report | None:
        """Returns the first report for which a condition holds; None, and a violation, after a timeout."""
        deadline = time.monotonic() + self.patience_s
        report: Report | None = None
        while time.monotonic() < deadline:
            try:
                report = await self.report()
            except AstraFlowError:
                pass  # dataflow is starting
            else:
                if holds(report):
                    return report
            await asyncio.sleep(0.2)
        message = f"{what} did not come within {self.patience_s:.0f} s; the last report: {report}"
        self.violations.append(Violation(promise=Invariant.PROCESS, message=message))
        return None

    async def pause_flows(self) -> None:
        """Pauses issuing."""
        async with dial(self.topology.dataflow, token=TOKEN_OF_RUN, tls=self.topology.tls) as link:
            client = ControlPlaneClient(link)
            for flow in (await client.report()).flows:
                await client.pause_flow(flow.id, is_paused=True, actor="soak", reason="to see where everything ends")

    async def versions(self, policy: PolicyId) -> tuple[VersionNotice, ...]:
        """Returns the versions that the store has of a policy."""
        async with dial(self.topology.weights, token=TOKEN_OF_RUN, tls=self.topology.tls) as link:
            return await WeightPlaneClient(link).versions(policy)

    async def _look_at_report(self) -> None:
        before = self.ledger.steps()
        report = await self.report()
        self.reports += 1
        self.violations += self.ledger.check_report(report, steps_before=before)

    async def _look_at_versions(self) -> None:
        for policy, lineage in self.ledger.lineages.items():
            before = dict(lineage.published)
            kept = await self.versions(policy)
            self.violations += self.ledger.check_stored_versions(policy, kept, before)

    def _note_disk(self) -> None:
        """Records disk usage; tolerates files that appear and disappear."""
        sizes = 0
        for path in (self.directory / DATAFLOW).rglob("*"):
            with suppress(FileNotFoundError):
                sizes += path.stat().st_size
        self.disk_max_mib = max(self.disk_max_mib, sizes / 2**20)

    def _note_memory(self) -> None:
        process = self.topology.processes[DATAFLOW]
        now = time.monotonic()
        if process.pid is None or now - process.started_at < SETTLED_S:
            return
        try:
            self.memory.append((now, psutil.Process(process.pid).memory_info().rss / 2**20))
        except psutil.NoSuchProcess:
            return  # the process was just killed
