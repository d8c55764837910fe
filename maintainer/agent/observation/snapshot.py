"""Snapshot of the run: dataflow's report, the fleet, its instances and its journal."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import Instance, LaunchId
from astraflow.contract.fleet.maintainer import Proposal
from astraflow.contract.fleet.plans import PlanId
from astraflow.contract.fleet.pools import FleetStatus, Pool
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import NodeReport, NodeState, Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

MAX_INSTANCES = 1000
"""Latest instances that are read."""
MAX_DECISIONS = 300
MAX_PROPOSALS = 50


class ReportSource(Protocol):
    """Interface of dataflow that is read; implemented by the client of the control plane."""

    async def report(self) -> Report:
        """Returns the current state of the run."""


class JournalReader(Protocol):
    """Interface of the journal that is read; implemented by the client of the fleet plane."""

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """Returns the journal, newest first."""


class FleetStatusSource(JournalReader, Protocol):
    """Interface of the fleet that is read; implemented by the client of the fleet plane."""

    async def status(self) -> FleetStatus:
        """Returns the service and its pools."""

    async def instances(
        self, *, pool: PoolId | None = None, with_gone: bool = False, before: LaunchId | None = None, limit: int = 1000
    ) -> tuple[Instance, ...]:
        """Returns the ledger, newest first."""

    async def proposals(
        self, *, only_waiting: bool = True, before: PlanId | None = None, limit: int = 100
    ) -> tuple[Proposal, ...]:
        """Returns waiting or decided proposals, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of the run and the fleet at one time."""

    at: float
    """Unix seconds."""
    fleet: FleetStatus
    report: Report | None = None
    """Latest report; None before the first."""
    report_age_s: float | None = None
    """Time since the report last changed, seconds."""
    instances: tuple[Instance, ...] = ()
    """Newest first, terminated ones included."""
    decisions: tuple[Decision, ...] = ()
    """Newest first."""
    proposals: tuple[Proposal, ...] = ()
    """Newest first, decided ones included."""

    def recommendation(self, pool: PoolId) -> PoolRecommendation | None:
        """Latest recommendation of the rule for a pool."""
        recommendations = self.report.recommendations if self.report is not None else ()
        return next((recommendation for recommendation in recommendations if recommendation.pool == pool), None)

    def pool(self, pool: PoolId) -> Pool | None:
        """Pool with this id; None if unknown."""
        return next((pool_state for pool_state in self.fleet.pools if pool_state.spec.id == pool), None)

    def nodes(self) -> dict[str, NodeReport]:
        """Nodes by name; the newest incarnation of each."""
        newest: dict[str, NodeReport] = {}
        for node in self.report.nodes if self.report is not None else ():
            previous = newest.get(node.facts.name)
            if previous is None or node.joined_at >= previous.joined_at:
                newest[node.facts.name] = node
        return newest

    def median_speed(self, pool: PoolId) -> float | None:
        """Median episodes per second of the pool's ready nodes; None without any."""
        nodes: Sequence[NodeReport] = self.report.nodes if self.report is not None else ()
        speeds = [node.episodes_per_s for node in nodes if node.facts.pool == pool and node.state is NodeState.READY]
        return median(speeds) if speeds else None


class SnapshotReader:
    """Reads snapshots. Keeps the previous report, with its age, while dataflow cannot be read."""

    def __init__(self, run: ReportSource, fleet: FleetStatusSource, clock: Clock) -> None:
        self._run = run
        self._fleet = fleet
        self._clock = clock
        self._report: Report | None = None
        self._report_changed_at = 0.0

    async def read(self) -> Snapshot:
        """Reads a snapshot. Raises: AstraFlowError if the fleet service cannot be read."""
        await self._read_report()
        status = await self._fleet.status()
        instances = await self._fleet.instances(with_gone=True, limit=MAX_INSTANCES)
        decisions = await self._fleet.decisions(limit=MAX_DECISIONS)
        proposals = await self._fleet.proposals(only_waiting=False, limit=MAX_PROPOSALS)
        age_s = None if self._report is None else self._clock.now() - self._report_changed_at
        return Snapshot(
            at=self._clock.wall(),
            fleet=status,
            report=self._report,
            report_age_s=age_s,
            instances=instances,
            decisions=decisions,
            proposals=proposals,
        )

    async def _read_report(self) -> None:
        try:
            report = await self._run.report()
        except AstraFlowError as problem:
            log.warning("report_read_failed", problem=str(problem))
            return
        if self._report is None or report.sequence != self._report.sequence:
            self._report, self._report_changed_at = report, self._clock.now()
