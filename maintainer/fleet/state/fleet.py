"""Shared state of the fleet service: ledger, providers, observation of dataflow, and views of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.instances import Instance, InstanceState, LaunchId
from astraflow.contract.fleet.maintainer import MaintainerMode, MaintainerStatus, Proposal
from astraflow.contract.fleet.plans import Actor, Role
from astraflow.contract.fleet.pools import FleetStatus, KillScope, Pool, PoolSpec
from astraflow.contract.ids import PoolId
from astraflow.contract.records import Record
from astraflow.runtime.clock import Clock, StoredTimes
from astraflow.runtime.logs import get_logger
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.guard.guard import Rejection, Situation
from maintainer.fleet.guard.rules import Limits
from maintainer.fleet.ledger.ledger import Ledger, counts
from maintainer.fleet.ledger.lifecycle import COUNTED_STATES
from maintainer.fleet.ledger.records import LaunchIds, LaunchRecord, PoolRecord, spending_rate, spent_today
from maintainer.fleet.ledger.transitions import losses, terminating
from maintainer.fleet.providers.base import FaultInjectable, Provider
from maintainer.fleet.state.observation import HEARTBEAT_S, Observation

log = get_logger()

FLEET_ACTOR = Actor(name="fleet", role=Role.RULE)
"""Actor of the service's own changes: replacements, sweeps, failed launches."""


_SAMPLES = 50
"""Number of latest launch delays in the percentile."""


@dataclass(slots=True, kw_only=True)
class MaintainerHeartbeat:
    """Latest status of the maintainer, in memory only."""

    status: MaintainerStatus | None = None
    at: float = 0.0
    """Time of the status, on the service's clock."""
    wake_requests: int = 0
    """Wakes that people requested. Count."""
    wake_decision: int = -1
    """Ordinal of the decision of the latest one; -1 before the first."""


class KillSwitchFile:
    """The kill switch as a file, without any service: while it exists, no instance is launched or retired."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Returns whether the file exists, checked at each call, so that `touch` takes effect at once."""
        return self.path.exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """State of the fleet as all parts of the service read it."""

    config: FleetConfig
    ledger: Ledger
    providers: Mapping[str, Provider]
    observation: Observation
    switch_file: KillSwitchFile
    launch_ids: LaunchIds
    clock: Clock
    run: str
    """Name of the run and identity of the ledger, for tags."""
    join_address: str
    """`HOST:PORT` where nodes join the run."""
    maintainer_heartbeat: MaintainerHeartbeat = field(default_factory=MaintainerHeartbeat)
    stored_times: StoredTimes = field(init=False)
    """Ages of the ledger's times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stored_times", StoredTimes(self.clock))

    @property
    def cluster(self) -> str:
        """Tag of all instances: the configured one, else one that is unique."""
        return self.config.cluster or self.ledger.tagged("astraflow")

    @property
    def limits(self) -> Limits:
        """Limits of changes without approval, and budgets."""
        return self.config.guard_limits()

    @property
    def kill(self) -> KillScope:
        """Scope of the kill switch: the wider one of the ledger's switch and the file."""
        return KillScope.ALL if self.switch_file.exists() else self.ledger.switch.scope

    def pool(self, name: PoolId) -> PoolRecord:
        """Returns a pool. Raises: InvalidInput for an unknown one."""
        if name not in self.ledger.pools:
            pool_names = ", ".join(sorted(self.ledger.pools)) or "none yet"
            raise InvalidInput(
                f"cannot find the pool: no pool is named {name!r}; known pools: {pool_names}",
                code="fleet.pool_not_found",
            )
        return self.ledger.pools[name]

    def provider(self, name: str) -> Provider:
        """Returns a provider. Raises: InvalidInput for an unknown one."""
        if name not in self.providers:
            provider_names = ", ".join(sorted(self.providers))
            raise InvalidInput(
                f"cannot find the provider: no provider is named {name!r}; known providers: {provider_names}",
                code="fleet.unknown_provider",
            )
        return self.providers[name]

    def instances(self, pool: PoolId) -> tuple[Instance, ...]:
        """Returns the pool's instances that are not gone."""
        return tuple(record.instance for record in self.ledger.alive(pool))

    def unmanaged(self, pool: PoolId) -> int:
        """Returns the number of present nodes of the pool that belong to no live launch."""
        records = (self.ledger.records.get(LaunchId.unchecked(name)) for name in self.observation.present(pool))
        return sum(1 for record in records if record is None or self.is_back(record))

    def is_back(self, record: LaunchRecord) -> bool:
        """Returns whether a launch was recorded as gone, but its node has sent heartbeats since then."""
        gone_at = record.instance.gone_at
        if gone_at is None:
            return False
        return self.observation.heartbeat_age_s(record.id) + HEARTBEAT_S < self.stored_times.age_s(gone_at)

    def machines(self, pool: PoolId) -> int:
        """Returns the number of the pool's machines that may run, including terminating and manually started ones."""
        launched = [
            record
            for record in self.ledger.billed(pool)
            if record.instance.state is not InstanceState.INTENDED or record.tries
        ]
        return len(launched) + self.unmanaged(pool)

    def size(self, pool: PoolId) -> int:
        """Returns present plus requested nodes, including manually started ones, as the rule counts them."""
        managed = sum(1 for instance in self.instances(pool) if instance.state in COUNTED_STATES)
        return managed + self.unmanaged(pool)

    def launch_delay_s(self, spec: PoolSpec) -> float:
        """Returns the 90th percentile of recent launch delays in seconds; below three, the provider's estimate."""
        instances = [record.instance for record in self.ledger.of_pool(spec.id)]
        delays = [instance.ready_at - instance.intended_at for instance in instances if instance.ready_at is not None][
            -_SAMPLES:
        ]
        if len(delays) < 3:
            provider = self.providers.get(spec.provider)
            return max([*delays, provider.capabilities().launch_delay_s if provider is not None else 60.0])
        return quantiles(delays, n=10, method="inclusive")[-1]

    def situation(self, pool: PoolRecord) -> Situation:
        """Returns the guard's view of a pool."""
        spec, now = pool.spec, self.clock.wall()
        pool_records = self.ledger.of_pool(spec.id)
        all_records = self.ledger.records.values()
        cool_down_s = self.config.limits.cool_down_s
        return Situation(
            now=now,
            spec=spec,
            instances=self.instances(spec.id),
            unmanaged=self.unmanaged(spec.id),
            target=pool.target,
            rule_target=self.rule_target(spec.id),
            report_age_s=self.observation.age_s,
            changed_at=pool.changed_at,
            cool_down_s=self.launch_delay_s(spec) if cool_down_s is None else cool_down_s,
            hold_until_at=pool.hold_until_at,
            breaker_until=pool.breaker_until,
            kill=self.kill,
            usd_per_hour=spending_rate(self.ledger.billed(spec.id)),
            usd_today=spent_today(pool_records, now=now),
            fleet_usd_per_hour=spending_rate(self.ledger.billed()),
            fleet_usd_today=spent_today(all_records, now=now),
            rejected=self._rejected(spec.id, now),
        )

    def _rejected(self, pool: PoolId, now: float) -> tuple[Rejection, ...]:
        """Returns plans for the pool that people rejected recently."""
        within_s = self.limits.rejected_s
        return tuple(
            Rejection(
                at=proposal.decided_at,
                target=proposal.plan.target,
                retire=proposal.plan.request.retire,
                victims=proposal.plan.victims,
            )
            for proposal in self.ledger.rejected_proposals.values()
            if proposal.plan.request.pool == pool
            and proposal.decided_at is not None
            and now - proposal.decided_at < within_s
        )

    def rule_target(self, pool: PoolId) -> int | None:
        """Returns the rule's current target; None while it is unknown."""
        recommendation = self.observation.recommendation(pool)
        return None if recommendation is None else recommendation.target

    def view(self, pool: PoolRecord) -> Pool:
        """Returns a pool as clients see it."""
        situation = self.situation(pool)
        provider = self.providers.get(pool.spec.provider)
        pool_records = self.ledger.of_pool(pool.spec.id)
        return Pool(
            spec=pool.spec,
            version=pool.version,
            target=pool.target,
            nodes=counts(self.ledger.alive(pool.spec.id)),
            terminating=terminating(pool_records),
            losses=losses(pool_records, now=situation.now),
            usd_per_hour=situation.usd_per_hour,
            usd_today=situation.usd_today,
            rule_target=situation.rule_target,
            launch_delay_s=self.launch_delay_s(pool.spec),
            hold_until_at=pool.hold_until_at if _is_ahead(pool.hold_until_at, situation.now) else None,
            hold_reason=pool.hold_reason if _is_ahead(pool.hold_until_at, situation.now) else "",
            breaker_until=pool.breaker_until if _is_ahead(pool.breaker_until, situation.now) else None,
            last_change_at=pool.changed_at[-1] if pool.changed_at else None,
            simulated=provider.capabilities().simulated if provider is not None else (),
            can_inject_fault=isinstance(provider, FaultInjectable),
        )

    def status(self, *, last_sweep_at: float | None, problems: tuple[Record, ...]) -> FleetStatus:
        """Returns the service's status as clients see it."""
        now, records = self.clock.wall(), self.ledger.records.values()
        is_file = self.switch_file.exists()
        return FleetStatus(
            cluster=self.cluster,
            at=now,
            pools=tuple(self.view(pool) for _, pool in sorted(self.ledger.pools.items())),
            kill=self.kill,
            kill_reason=f"the file {self.switch_file.path} exists" if is_file else self.ledger.switch.reason,
            usd_per_hour=spending_rate(self.ledger.billed()),
            usd_today=spent_today(records, now=now),
            last_sweep_at=last_sweep_at,
            orphans=len(self.ledger.orphans),
            waiting=sum(self._waits(proposal, now) for proposal in self.ledger.waiting_proposals.values()),
            problems=problems,
        )

    def _waits(self, proposal: Proposal, now: float) -> bool:
        """Returns whether the proposal can still be decided: it has not expired and its pool is unchanged."""
        pool = self.ledger.pools.get(proposal.plan.request.pool)
        if proposal.plan.request.run is not None:
            return proposal.plan.expires_at >= now
        is_current = pool is not None and pool.version == proposal.plan.observed_version
        return is_current and proposal.plan.expires_at >= now

    @property
    def agents_mode(self) -> MaintainerMode | None:
        """Mode of agents: the mode set by people, else the maintainer's own; None before either is known."""
        if self.ledger.maintainer_setting is not None:
            return self.ledger.maintainer_setting.mode
        return self.maintainer_heartbeat.status.mode if self.maintainer_heartbeat.status is not None else None


def _is_ahead(at: float | None, now: float) -> bool:
    return at is not None and at > now
