"""What there is to see at one moment: dataflow's report, the fleet, its instances, its journal."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from astraflow.contract.advice import PoolAdvice
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Decision, FleetStatus, Instance, LaunchId, PlanId, Pool
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import Proposal
from astraflow.contract.reports import NodeReport, NodeState, Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

INSTANCES = 1000
"""The latest that are looked at; fewer when there are fewer."""
DECISIONS = 300
PROPOSALS = 50


class RunPort(Protocol):
    """What is read of dataflow: the control plane's client is one."""

    async def report(self) -> Report:
        """The state of the run now."""


class WatchPort(Protocol):
    """What is read of the fleet: the fleet plane's client is one."""

    async def status(self) -> FleetStatus:
        """The service and its pools."""

    async def instances(
        self, *, pool: PoolId | None = None, with_gone: bool = False, before: LaunchId | None = None, limit: int = 1000
    ) -> tuple[Instance, ...]:
        """The ledger, newest first."""

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """The journal, newest first."""

    async def proposals(
        self, *, only_waiting: bool = True, before: PlanId | None = None, limit: int = 100
    ) -> tuple[Proposal, ...]:
        """Plans that wait, or waited, for a person; newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All of it, at one moment."""

    at: float
    """Unix seconds."""
    fleet: FleetStatus
    report: Report | None = None
    """The latest; None before the first."""
    report_age_s: float | None = None
    """Since it said anything new."""
    instances: tuple[Instance, ...] = ()
    """Newest first, those that are gone too."""
    decisions: tuple[Decision, ...] = ()
    """Newest first."""
    proposals: tuple[Proposal, ...] = ()
    """Newest first, those that were decided too."""

    def advice(self, pool: PoolId) -> PoolAdvice | None:
        """What the rule says of a pool."""
        said = self.report.advice if self.report is not None else ()
        return next((one for one in said if one.pool == pool), None)

    def pool(self, pool: PoolId) -> Pool | None:
        """One pool."""
        return next((one for one in self.fleet.pools if one.spec.id == pool), None)

    def nodes(self) -> dict[str, NodeReport]:
        """By name; of several incarnations the newest."""
        found: dict[str, NodeReport] = {}
        for node in self.report.nodes if self.report is not None else ():
            known = found.get(node.facts.name)
            if known is None or node.joined_at >= known.joined_at:
                found[node.facts.name] = node
        return found

    def median_speed(self, pool: PoolId) -> float | None:
        """Episodes a second of the pool's nodes that work."""
        nodes: Sequence[NodeReport] = self.report.nodes if self.report is not None else ()
        speeds = [node.episodes_per_s for node in nodes if node.facts.pool == pool and node.state is NodeState.READY]
        return median(speeds) if speeds else None


class Eyes:
    """Looks. What cannot be read now stays as it was, and ages."""

    def __init__(self, run: RunPort, fleet: WatchPort, clock: Clock) -> None:
        self._run = run
        self._fleet = fleet
        self._clock = clock
        self._report: Report | None = None
        self._heard_at = 0.0

    async def look(self) -> Sight:
        """Now. Raises: AstraFlowError when the fleet service cannot be read."""
        await self._read_report()
        status = await self._fleet.status()
        instances = await self._fleet.instances(with_gone=True, limit=INSTANCES)
        decisions = await self._fleet.decisions(limit=DECISIONS)
        proposals = await self._fleet.proposals(only_waiting=False, limit=PROPOSALS)
        age_s = None if self._report is None else self._clock.now() - self._heard_at
        return Sight(
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
            log.warning("report_not_readable", problem=str(problem))
            return
        if self._report is None or report.sequence != self._report.sequence:
            self._report, self._heard_at = report, self._clock.now()
