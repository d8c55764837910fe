"""An hour of virtual time with random faults: bounds and budget hold, and no working node ends without an order.

Lists of the provider are empty, partial, old or wrong; its calls fail, or succeed without an answer; its keys expire;
the ledger's database is locked; dataflow is away or restarts; the wall clock jumps; the kill switch is set; the service
restarts; machines fail or are preempted, and lose their tags. The seed determines all events.
"""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from sqlmodel import Session

from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.contract.fleet.instances import Cause, InstanceState, LaunchId
from astraflow.contract.ids import NodeId, PoolId
from astraflow.contract.nodes import JoinToken
from astraflow.contract.reports.report import Report
from astraflow.runtime.database import Database
from maintainer.fleet.providers.base import (
    AuthError,
    Handle,
    Instance,
    ProviderError,
    RetireResult,
    RetryError,
    State,
    UnknownError,
)
from maintainer.fleet.state.observation import TargetRecommendation
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud, CloudProvider, Machine
from tests.maintainer.fleet.instances.test_fault_injection import empty
from tests.maintainer.fleet.parts import POOL, START, Parts, Run, build, memory_database, spec

pytestmark = pytest.mark.anyio

T = TypeVar("T")

HOURS = int(os.environ.get("ASTRAFLOW_FLEET_HOURS", "200"))
"""Hours of the long test, one per seed."""
SHORT_HOURS = 4
"""Hours in `make test`."""
TICK_S, SWEEP_S, HOUR_S, CALM_S = 5.0, 60.0, 3600.0, 1800.0
MAX_NODES, BUDGETS = 6, (5.0, 100.0)

TROUBLES = {
    "empty list": 300.0,
    "list without a region": 600.0,
    "old list": 300.0,
    "wrong states": 200.0,
    "provider fails": 1200.0,
    "answers are lost": 200.0,
    "keys expired": 900.0,
    "database locked": 120.0,
    "dataflow away": 1200.0,
    "dataflow restarted": 45.0,
    "kill switch": 1500.0,
}
"""Longest duration of each trouble in seconds."""
ORDERED = (Cause.REQUESTED, Cause.EXPIRED, Cause.PREEMPTED)
"""Causes for which a node is drained, and its machine ends although the node may still work."""


class JumpyClock(ManualClock):
    """Clock of the service, on the true clock of the cloud; its wall time can jump."""

    def __init__(self, true: ManualClock) -> None:
        super().__init__()
        self.true = true
        self.ahead_s = 0.0

    def now(self) -> float:
        return self.true.now()

    def wall(self) -> float:
        return self.true.wall() + self.ahead_s

    def advance(self, duration_s: float) -> None:
        self.true.advance(duration_s)


class Hour:
    """One hour of random faults."""

    def __init__(self, seed: int, directory: Path, database: Database) -> None:
        self.luck = random.Random(f"hour {seed}")
        self.budget = self.luck.choice(BUDGETS)
        self.directory = directory
        self.true = ManualClock(START)
        self.clock = JumpyClock(self.true)
        self.cloud = Cloud(
            self.true, boot_s=20.0, end_s=self.luck.choice([0.0, 15.0, 90.0]), lag_s=self.luck.choice([0.0, 30.0])
        )
        self.run = ForgetfulRun(self)
        self.database = LockedDatabase(database, self)
        self.provider = LyingProvider(self)
        self.ends_at: dict[str, float] = {}
        """True time of the end of each present trouble."""
        self.targets: dict[PoolId, TargetRecommendation] = {}
        self.violations: list[str] = []
        self.parts: Parts
        self.lives = 0

    def has(self, trouble: str) -> bool:
        """Returns whether a trouble is present."""
        return self.ends_at.get(trouble, 0.0) > self.true.now()

    async def restart(self) -> None:
        """Starts the next process of the service."""
        self.lives += 1
        pool = spec(max_nodes=MAX_NODES, usd_per_hour_max=self.budget)
        self.parts = await build(
            self.directory,
            pool=pool,
            cloud=self.cloud,
            clock=self.clock,
            database=self.database,
            provider=lambda _: self.provider,
            run=self.run,
            seed=self.lives,
            times={"breaker_s": 60.0, "max_age_s": 2400.0},
        )
        self.parts.targets = self.targets

    async def pass_time(self, duration_s: float, *, with_troubles: bool) -> None:
        until, next_sweep = self.true.now() + duration_s, self.true.now()
        while self.true.now() < until:
            if with_troubles:
                await self._trouble()
            self.run.is_away = self.has("dataflow away")
            if self.has("kill switch"):
                (self.directory / "KILL").touch()
            else:
                (self.directory / "KILL").unlink(missing_ok=True)
            try:
                await self.parts.tick()
                if self.true.now() >= next_sweep:
                    next_sweep += SWEEP_S
                    await self.parts.reconciler.sweep()
            except Unavailable:
                assert self.has("database locked")
            self._check()
            self.true.advance(TICK_S)

    async def _trouble(self) -> None:
        """Starts troubles, or lets single events happen."""
        luck = self.luck
        if luck.random() < 0.06:
            trouble = luck.choice(list(TROUBLES))
            self.ends_at[trouble] = self.true.now() + luck.uniform(10.0, TROUBLES[trouble])
            self.provider.remember_list()
            if trouble == "dataflow restarted":
                self.parts.fleet.observation.interrupt()  # the stream of reports ends
        if luck.random() < 0.04:
            await luck.choice([self._jump, self._restart_service, self._fail, self._preempt, self._change_tags])()
        if luck.random() < 0.04:
            self.targets[POOL] = TargetRecommendation(target=luck.randrange(0, 9), reason="a test")
        if luck.random() < 0.03:
            try:
                await self.parts.want(luck.randrange(0, MAX_NODES + 1))
            except AstraFlowError:
                return  # refused by the guard, or a trouble

    async def _jump(self) -> None:
        self.clock.ahead_s += self.luck.choice([-1, 1]) * self.luck.choice([8.0, 100.0, 1000.0, 10_000.0])

    async def _restart_service(self) -> None:
        if not self.has("database locked"):
            await self.restart()

    async def _fail(self) -> None:
        if self.cloud.alive():
            self.cloud.end(self.luck.choice(self.cloud.alive()), after_s=0.0)

    async def _preempt(self) -> None:
        if self.cloud.alive():
            self.cloud.preempt(self.luck.choice(self.cloud.alive()), in_s=120.0)

    async def _change_tags(self) -> None:
        """Removes one machine at a time from the lists by its tags."""
        strangers = [machine for machine in self.cloud.alive() if not is_tagged(machine)]
        if self.cloud.alive() and not strangers:
            machine = self.luck.choice(self.cloud.alive())
            assert machine.instance.tags is not None
            machine.instance = replace(machine.instance, tags=replace(machine.instance.tags, cluster="changed"))

    def works(self, machine: Machine) -> bool:
        """Returns whether a machine's node takes tasks."""
        name = machine.instance.handle.launch_id
        return self.cloud.state(machine) is State.RUNNING and name not in self.run.drained

    def check_retirement(self, machine: Machine) -> None:
        """Checks a termination of a machine by the service."""
        record = self.parts.ledger.records.get(LaunchId.unchecked(machine.instance.handle.launch_id))
        cause = record.instance.cause if record is not None else None
        is_ordered = record is not None and record.instance.gone_at is None and cause in ORDERED
        if self.works(machine) and machine.instance.notice_at is None and not is_ordered:
            self.violations.append(f"{self.true.now() - START:.0f} s: {machine.instance.handle.id} worked, {record}")

    def _check(self) -> None:
        """Checks the bounds."""
        running = {machine.instance.handle.launch_id for machine in self.cloud.alive()}
        if len(running) > min(MAX_NODES, self.budget):
            self.violations.append(f"{self.true.now() - START:.0f} s: {len(running)} machines")


def is_tagged(machine: Machine) -> bool:
    return machine.instance.tags is not None and machine.instance.tags.cluster == "tests"


class LyingProvider(CloudProvider):
    """Provider with the troubles of an hour."""

    def __init__(self, hour: Hour) -> None:
        super().__init__(hour.cloud, fault=self._fail)
        self._hour = hour
        self._old: tuple[Instance, ...] = ()

    def remember_list(self) -> None:
        """Keeps the list of this moment for the trouble of an old list."""
        self._old = self._true_list()

    async def list(self, cluster: str) -> tuple[Instance, ...]:
        self.fault("list before")
        listed = self._old if self._hour.has("old list") else self._true_list()
        if self._hour.has("empty list"):
            return ()
        if self._hour.has("list without a region"):
            listed = tuple(instance for instance in listed if int(instance.handle.id[2:]) % 3)
        if self._hour.has("wrong states"):
            states = (State.PENDING, State.STUCK, State.GONE)
            listed = tuple(replace(instance, state=self._hour.luck.choice(states)) for instance in listed)
        return listed

    async def retire(self, launch_id: str, *, keep: Handle | None = None) -> RetireResult:
        for machine in self.cloud.find(launch_id, is_seen=True):
            if machine.instance.handle != keep and machine.gone_at is None and not self._is_broken("retire before"):
                self._hour.check_retirement(machine)
        return await super().retire(launch_id, keep=keep)

    def _true_list(self) -> tuple[Instance, ...]:
        shown = [
            machine for machine in self.cloud.machines.values() if self.cloud.shows(machine) and is_tagged(machine)
        ]
        return tuple(self._seen(machine) for machine in shown)

    def _is_broken(self, point: str) -> bool:
        return (self._hour.has("keys expired") or self._hour.has("provider fails")) and point.endswith("before")

    def _fail(self, point: str) -> None:
        errors: list[type[ProviderError]] = [RetryError, UnknownError]
        if self._is_broken(point):
            raise AuthError("expired") if self._hour.has("keys expired") else self._hour.luck.choice(errors)("failed")
        if self._hour.has("answers are lost") and point in ("launch after", "retire after"):
            raise self._hour.luck.choice(errors)("no answer")


class ForgetfulRun(Run):
    """Dataflow with the troubles of an hour."""

    def __init__(self, hour: Hour) -> None:
        super().__init__(hour.cloud)
        self._hour = hour

    def report(self) -> Report:
        report = super().report()
        if self._hour.has("dataflow restarted"):
            return replace(report, nodes=(), sequence=0)
        return replace(report, sequence=int(self._hour.true.now() - START) + 1)

    async def mint_join_token(
        self, role: str, *, pool: str = "", name: str = "", valid_s: float = 0.0, actor: str, reason: str
    ) -> JoinToken:
        self._answer()
        return await super().mint_join_token(role, pool=pool, name=name, valid_s=valid_s, actor=actor, reason=reason)

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        self._answer()
        return await super().drain_node(node, actor=actor, reason=reason, deadline_s=deadline_s)

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("dataflow is away")


class LockedDatabase(Database):
    """Ledger's database, which is locked at times."""

    def __init__(self, database: Database, hour: Hour) -> None:
        self._database = database
        self._hour = hour

    async def write(self, work: Callable[[Session], T]) -> T:
        if self._hour.has("database locked"):
            raise Unavailable("the database is locked")
        return self._database.write_sync(work)

    async def read(self, work: Callable[[Session], T]) -> T:
        return await self.write(work)


async def walk(seed: int, directory: Path, database: Database) -> list[str]:
    """Returns the violations of an hour of troubles and the calm after it."""
    hour = Hour(seed, directory, database)
    await hour.restart()
    await hour.pass_time(HOUR_S, with_troubles=True)
    hour.ends_at.clear()
    hour.targets.clear()
    await hour.restart()
    await hour.pass_time(CALM_S, with_troubles=False)
    running = {machine.instance.handle.launch_id for machine in hour.cloud.alive()}
    known = {record.id: record.instance.state for record in hour.parts.ledger.alive()}
    changing = (InstanceState.INTENDED, InstanceState.RETIRING)  # a replacement waits for the end of a machine
    absent = {launch for launch, state in known.items() if state in changing}
    violations = list(hour.violations)
    if not set(known) - absent <= running <= set(known):
        violations.append(f"running {sorted(running)}, known {sorted(known)}")
    states = [record.instance.state for record in hour.parts.ledger.alive()]
    target = hour.parts.fleet.pool(POOL).target
    renewed = sum(state is not InstanceState.READY for state in states)  # one drains, and its replacement starts
    if renewed > 2 or states.count(InstanceState.READY) < min(target, hour.budget) - 1:
        violations.append(f"{hour.parts.states()} instead of {target} ready nodes")
    return violations


@pytest.mark.parametrize("seed", range(SHORT_HOURS))
async def test_bounds_hold_and_no_working_node_ends_in_an_hour_of_faults(seed: int, tmp_path: Path) -> None:
    assert await walk(seed, tmp_path, memory_database()) == []


@pytest.mark.long
@pytest.mark.timeout(0)
async def test_bounds_hold_and_no_working_node_ends_in_many_hours_of_faults(tmp_path: Path) -> None:
    database, violations = memory_database(), {}
    for seed in range(SHORT_HOURS, SHORT_HOURS + HOURS):
        database.write_sync(empty)
        if broken := await walk(seed, tmp_path, database):
            violations[seed] = broken[:3]
    assert violations == {}
