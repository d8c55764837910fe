"""The shared state of the service: one ledger, the providers, what dataflow says, and views of all that."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any

from astraflow.contract.causes import Cause
from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet import (
    Actor,
    Decision,
    Finding,
    FleetStatus,
    Instance,
    InstanceState,
    KillScope,
    LaunchId,
    Pool,
    PoolSpec,
    Role,
)
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import MaintainerMode, MaintainerStatus, Proposal
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.fleet import spending
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.departures import leaving, losses
from maintainer.fleet.guard import Limits, Rejection, Situation
from maintainer.fleet.launch_ids import LaunchIds
from maintainer.fleet.ledger import Changes, Ledger, counts
from maintainer.fleet.lifecycle import COUNTED, STARTING, Sight
from maintainer.fleet.observation import Observation
from maintainer.fleet.providers.base import Breakable, Provider
from maintainer.fleet.records import PoolRecord, Record
from maintainer.fleet.stepping import stepped
from maintainer.fleet.switch_file import SwitchFile

log = get_logger()

ITSELF = Actor(name="fleet", role=Role.RULE)
"""Who acts when nobody asked: replacements, sweeps, launches that failed."""

FAILURES = (Sight.RETIRE, Sight.GONE, Sight.MISSING)
"""What ends a launch that has not worked yet, other than a plan or its provider's need of the machine."""
BREAK_AFTER = 3
"""Launches of a pool that failed in a row."""

_SAMPLES = 50
"""Launch delays that the percentile is of."""


@dataclass(slots=True, kw_only=True)
class Heard:
    """What the maintainer said of itself last; gone with the process."""

    status: MaintainerStatus | None = None
    at: float = 0.0
    """Of the service's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What every part of the service works on."""

    config: FleetConfig
    ledger: Ledger
    providers: Mapping[str, Provider]
    observation: Observation
    switch_file: SwitchFile
    launch_ids: LaunchIds
    clock: Clock
    run: str
    """Name of the run, for the tags."""
    join_address: str
    """`HOST:PORT` where machines join the run."""
    heard: Heard = field(default_factory=Heard)

    @property
    def limits(self) -> Limits:
        """The envelope."""
        return self.config.limits()

    @property
    def kill(self) -> KillScope:
        """Of the switch and of the file, the one that stops more."""
        return KillScope.ALL if self.switch_file.is_there() else self.ledger.switch.scope

    def pool(self, name: PoolId) -> PoolRecord:
        """Raises: InvalidInput for an unknown one."""
        if name not in self.ledger.pools:
            known = ", ".join(sorted(self.ledger.pools)) or "none yet"
            raise InvalidInput(f"no pool is called {name!r}; known: {known}")
        return self.ledger.pools[name]

    def provider(self, name: str) -> Provider:
        """Raises: InvalidInput for an unknown one."""
        if name not in self.providers:
            raise InvalidInput(f"no provider is called {name!r}; known: {', '.join(sorted(self.providers))}")
        return self.providers[name]

    def instances(self, pool: PoolId) -> tuple[Instance, ...]:
        """Of a pool, all that are not gone."""
        return tuple(record.instance for record in self.ledger.alive(pool))

    def unmanaged(self, pool: PoolId) -> int:
        """Nodes of the pool that take part and that no provider started for this service. Count."""
        return sum(1 for name in self.observation.present(pool) if name not in self.ledger.records)

    def size(self, pool: PoolId) -> int:
        """Nodes that are there or ordered. The rule counts the same ones, those that joined by hand included."""
        managed = sum(1 for instance in self.instances(pool) if instance.state in COUNTED)
        return managed + self.unmanaged(pool)

    def launch_delay_s(self, spec: PoolSpec) -> float:
        """The 90th percentile of what was measured in this pool lately; without three, what its provider says."""
        instances = [record.instance for record in self.ledger.of_pool(spec.id)]
        delays = [one.ready_at - one.intended_at for one in instances if one.ready_at is not None][-_SAMPLES:]
        if len(delays) < 3:
            known = self.providers.get(spec.provider)
            return max([*delays, known.capabilities().launch_delay_s if known is not None else 60.0])
        return quantiles(delays, n=10, method="inclusive")[-1]

    def situation(self, pool: PoolRecord) -> Situation:
        """What the guard is told."""
        spec, now = pool.spec, self.clock.wall()
        of_pool = self.ledger.of_pool(spec.id)
        everything = self.ledger.records.values()
        cool_down_s = self.config.envelope.cool_down_s
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
            hold_until=pool.hold_until,
            breaker_until=pool.breaker_until,
            kill=self.kill,
            usd_per_hour=spending.rate(of_pool),
            usd_today=spending.today(of_pool, now=now),
            fleet_usd_per_hour=spending.rate(everything),
            fleet_usd_today=spending.today(everything, now=now),
            rejected=self._rejected(spec.id, now),
        )

    def _rejected(self, pool: PoolId, now: float) -> tuple[Rejection, ...]:
        """What people said no to lately."""
        within_s = self.limits.rejected_s
        return tuple(
            Rejection(at=one.decided_at, target=one.plan.target, retire=one.plan.request.retire)
            for one in self.ledger.rejected.values()
            if one.plan.request.pool == pool and one.decided_at is not None and now - one.decided_at < within_s
        )

    def rule_target(self, pool: PoolId) -> int | None:
        """What the rule advises now."""
        advice = self.observation.advice(pool)
        return None if advice is None else advice.target

    def view(self, pool: PoolRecord) -> Pool:
        """A pool as clients see it."""
        situation = self.situation(pool)
        known = self.providers.get(pool.spec.provider)
        own = self.ledger.of_pool(pool.spec.id)
        return Pool(
            spec=pool.spec,
            version=pool.version,
            target=pool.target,
            nodes=counts(self.ledger.alive(pool.spec.id)),
            leaving=leaving(own),
            losses=losses(own, now=situation.now),
            usd_per_hour=situation.usd_per_hour,
            usd_today=situation.usd_today,
            rule_target=situation.rule_target,
            launch_delay_s=self.launch_delay_s(pool.spec),
            hold_until=pool.hold_until if _is_ahead(pool.hold_until, situation.now) else None,
            hold_reason=pool.hold_reason if _is_ahead(pool.hold_until, situation.now) else "",
            breaker_until=pool.breaker_until if _is_ahead(pool.breaker_until, situation.now) else None,
            last_change_at=pool.changed_at[-1] if pool.changed_at else None,
            simulated=known.capabilities().simulated if known is not None else (),
            can_lose=isinstance(known, Breakable),
        )

    def status(self, *, last_sweep_at: float | None, troubles: tuple[str, ...]) -> FleetStatus:
        """The service as clients see it."""
        now, records = self.clock.wall(), self.ledger.records.values()
        is_file = self.switch_file.is_there()
        return FleetStatus(
            cluster=self.config.cluster,
            at=now,
            pools=tuple(self.view(pool) for _, pool in sorted(self.ledger.pools.items())),
            kill=self.kill,
            kill_reason=f"the file {self.switch_file.path} is there" if is_file else self.ledger.switch.reason,
            usd_per_hour=spending.rate(records),
            usd_today=spending.today(records, now=now),
            last_sweep_at=last_sweep_at,
            orphans=len(self.ledger.orphans),
            waiting=sum(self._waits(proposal, now) for proposal in self.ledger.waiting.values()),
            troubles=troubles,
        )

    def _waits(self, proposal: Proposal, now: float) -> bool:
        """Whether somebody can still decide it: time and its pool go on."""
        pool = self.ledger.pools.get(proposal.plan.request.pool)
        is_current = pool is not None and pool.version == proposal.plan.observed_version
        return is_current and proposal.plan.expires_at >= now

    @property
    def agents_mode(self) -> MaintainerMode | None:
        """How far agents may go: what people said last, else what the maintainer says of itself; None before either."""
        if self.ledger.order is not None:
            return self.ledger.order.mode
        return self.heard.status.mode if self.heard.status is not None else None

    def decision(
        self,
        kind: str,
        *,
        pool: str = "",
        actor: Actor,
        reason: str,
        message: str,
        key: str = "",
        findings: tuple[Finding, ...] = (),
    ) -> Decision:
        """An entry of the journal, numbered next: to be made inside `Ledger.change`."""
        return Decision(
            ordinal=self.ledger.next_decision,
            at=self.clock.wall(),
            kind=kind,
            pool=pool,
            actor=actor,
            reason=reason,
            message=message,
            key=key,
            findings=findings,
        )

    async def see(
        self,
        launch: LaunchId,
        sight: Sight,
        *,
        cause: Cause | None = None,
        message: str | None = None,
        **changes: Any,
    ) -> Record | None:
        """Something was seen of an instance: keep what follows, and that its pool is another one if its size changed.

        cause: what makes it go, where more is known than the sight says. changes: other fields of its record; message,
        handle: of its instance. Returns it as it is then; None for one that nobody knows.
        """

        def decide(ledger: Ledger) -> tuple[Changes, Record | None]:
            known = ledger.records.get(launch)
            if known is None:
                return Changes(), None
            seen = stepped(known, sight, now=self.clock.wall(), cause=cause, message=message, changes=changes)
            if seen == known:
                return Changes(), known
            return self._changes(known, seen, sight), seen

        before = self.ledger.records.get(launch)
        seen = await self.ledger.change(decide)
        if seen is not None and before is not None and seen.instance.state is not before.instance.state:
            state, message = seen.instance.state.value, seen.instance.message
            log.info(
                "instance", launch=launch, pool=seen.instance.pool, state=state, sight=sight.value, message=message
            )
        return seen

    def _changes(self, known: Record, seen: Record, sight: Sight) -> Changes:
        """What an instance's step means for its pool: another size, a launch that worked or failed."""
        pool = self.ledger.pools[seen.instance.pool]
        is_counted, was_counted = (one.instance.state in COUNTED for one in (seen, known))
        changed = replace(pool, version=pool.version + (is_counted != was_counted))
        if seen.instance.state is InstanceState.READY and known.instance.ready_at is None:
            changed = replace(changed, failures=0, breaker_until=None)
        if not (sight in FAILURES and known.instance.state in STARTING and not is_counted):
            return Changes(records=(seen,), pools=(changed,) if changed != pool else ())
        failures = pool.failures + 1
        until = self.clock.wall() + self.config.times.breaker_s if failures >= BREAK_AFTER else pool.breaker_until
        decision = self.decision(
            "launch_failed",
            pool=pool.spec.id,
            actor=ITSELF,
            reason=seen.instance.message or sight.value,
            message=f"launch {seen.id} failed, {failures} in a row",
        )
        log.warning("launch_failed", launch=seen.id, pool=pool.spec.id, problem=seen.instance.message)
        return Changes(
            records=(seen,), pools=(replace(changed, failures=failures, breaker_until=until),), decisions=(decision,)
        )


def _is_ahead(at: float | None, now: float) -> bool:
    return at is not None and at > now
