"""Crashes and lost answers around any call or write leave no leaked or duplicate instance after two sweeps.

Each run simulates a pool in virtual time: targets change, machines are lost, and at each of the points below the
process may crash or the answer may be lost. A crash discards all memory; the restarted process has the ledger and
the cloud. The run number determines all events of a run.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlmodel import Session, SQLModel, delete

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.plans import PlanRequest
from astraflow.contract.ids import NodeId
from astraflow.runtime.database import Database
from maintainer.fleet.providers.base import CapacityError, RetryError, UnknownError
from tests.fakes.clock import ManualClock
from tests.fakes.cloud import Cloud, CloudProvider
from tests.fakes.crashes import Crash
from tests.maintainer.fleet.parts import ALICE, POOL, START, Parts, Run, build, memory_database
from tests.stateful import scaled_examples

pytestmark = pytest.mark.anyio

T = TypeVar("T")

RUNS = int(os.environ.get("ASTRAFLOW_FLEET_FAULT_RUNS", scaled_examples(4)))
"""Runs per fault point. Count."""
FIRST = int(os.environ.get("ASTRAFLOW_FLEET_FAULT_FIRST", "0"))
"""Number of the first run, to split many runs over processes."""

ACTIONS, MOST_ACTIONS = 6, 600
"""Actions of a run: the minimum, and the maximum until the fault in focus has occurred once. Count."""

CALLS = ("launch", "retire", "list", "drain", "write")
CRASHES = tuple(f"{call} {when}" for call in CALLS for when in ("before", "after"))
ANSWERS_LOST = ("launch before", "launch after", "retire before", "retire after", "list before")
"""Before: the call had no effect. After: the call took effect, but the caller sees a failure."""
LEDGER_TABLES = [table for name, table in SQLModel.metadata.tables.items() if name.startswith("fleet_")]

POINTS = (*(f"crash {point}" for point in CRASHES), *(f"lost {point}" for point in ANSWERS_LOST))


class Dice:
    """Injects faults at each point: always at the first or second pass of the focus point, often after that, and
    sometimes at other points."""

    def __init__(self, focus: str, seed: int) -> None:
        self.luck = random.Random(f"{focus} {seed}")
        self.focus = focus
        self.due = self.luck.choice([1, 2])
        self.crash_share = self.luck.choice([0.0, 0.02, 0.1])
        self.lost_share = self.luck.choice([0.0, 0.05, 0.3])
        self.refused_share = self.luck.choice([0.0, 0.1])
        self.is_calm = False
        self.passed: Counter[str] = Counter()
        self.hit: Counter[str] = Counter()

    def __call__(self, point: str) -> None:
        self.passed[point] += 1
        if self.is_calm:
            return
        if self._strikes(f"crash {point}", often=0.3, else_=self.crash_share):
            self.hit[f"crash {point}"] += 1
            raise Crash(point)
        if point in ANSWERS_LOST and self._strikes(f"lost {point}", often=0.5, else_=self.lost_share):
            self.hit[f"lost {point}"] += 1
            raise self.luck.choice([RetryError, UnknownError, TimeoutError])("made up for a test")
        if point == "launch before" and self.luck.random() < self.refused_share:
            raise CapacityError("made up for a test")

    def _strikes(self, fault: str, *, often: float, else_: float) -> bool:
        if fault != self.focus:
            return self.luck.random() < else_
        is_due = not self.hit[fault] and self.passed[fault.partition(" ")[2]] >= self.due
        return is_due or self.luck.random() < often


class CrashingDatabase(Database):
    """Database that may crash the process before or after a write; a crashed process writes nothing more."""

    def __init__(self, database: Database, dice: Dice, is_dead: Callable[[], bool]) -> None:
        self._database = database
        self._dice = dice
        self._is_dead = is_dead

    async def write(self, work: Callable[[Session], T]) -> T:
        is_write = getattr(work, "__name__", "") == "write"
        if self._is_dead():
            raise Crash("dead already")
        if is_write:
            self._dice("write before")
        result = self._database.write_sync(work)  # in memory and without a thread, so that runs are deterministic
        if is_write:
            self._dice("write after")
        return result

    async def read(self, work: Callable[[Session], T]) -> T:
        return await self.write(work)


class CrashingRun(Run):
    """Dataflow that may crash the process before or after a call."""

    def __init__(self, cloud: Cloud, dice: Dice) -> None:
        super().__init__(cloud)
        self._dice = dice

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        self._dice("drain before")
        answer = await super().drain_node(node, actor=actor, reason=reason, deadline_s=deadline_s)
        self._dice("drain after")
        return answer


class Story:
    """One run of random events with injected faults."""

    def __init__(self, focus: str, number: int, directory: Path, database: Database) -> None:
        """database: empty."""
        self.number = number
        self.dice = Dice(focus, number)
        self.directory = directory
        luck = self.dice.luck
        self.clock = ManualClock(START)
        lag_s = luck.choice([0.0, 10.0])
        self.cloud = Cloud(
            self.clock, boot_s=20.0, end_s=luck.choice([0.0, 15.0]), lag_s=lag_s, has_memory=luck.random() < 0.5
        )
        self.database = database
        self.run = CrashingRun(self.cloud, self.dice)
        self.lives = 0

    async def live(self) -> Parts:
        """Starts the next process."""
        self.lives += 1
        life = self.lives
        return await build(
            self.directory,
            cloud=self.cloud,
            clock=self.clock,
            database=CrashingDatabase(self.database, self.dice, lambda: self.lives != life),
            provider=lambda cloud: CloudProvider(cloud, fault=self.dice),
            run=self.run,
            seed=1000 * self.lives + self.number,
            times={"quarantine_s": 60.0, "breaker_s": 30.0},
        )

    async def tell(self) -> None:
        """Performs random actions; restarts the process after each crash."""
        parts = await self._restarted()
        for action in range(MOST_ACTIONS):
            if action >= ACTIONS and self.is_affected:
                return
            try:
                await self._act(parts)
                await parts.pass_time(self.dice.luck.choice([5.0, 20.0, 70.0]), tick_s=5.0)
            except* Crash:
                self.lives += 1  # leftover tasks of the crashed process write nothing more
                parts = await self._restarted()

    @property
    def is_affected(self) -> bool:
        """Whether the fault in focus has occurred."""
        return self.dice.hit[self.dice.focus] > 0

    async def _restarted(self) -> Parts:
        while True:
            try:
                return await self.live()
            except Crash:
                continue

    async def _act(self, parts: Parts) -> None:
        luck = self.dice.luck
        if luck.random() < 0.2 and self.cloud.alive():
            self.cloud.end(luck.choice(self.cloud.alive()), after_s=0.0)
        if luck.random() < 0.6:
            try:
                target = luck.randrange(0, 6)
                plan = await parts.fleet_manager.plans.make(
                    PlanRequest(pool=POOL, actor=ALICE, reason="a test", target=target)
                )
                await parts.fleet_manager.apply(plan.id, key=f"{self.lives}-{plan.id}", approver=ALICE)
            except AstraFlowError:
                return  # refused by the guard, or the pool has changed

    async def end_well(self) -> Parts:
        """Runs without faults: two sweeps, a quarantine between them, and time for the resulting changes.

        The clock first advances by the listing lag, so that the sweep sees the latest launches.
        """
        self.dice.is_calm = True
        self.clock.advance(self.cloud.lag_s)
        parts = await self.live()
        await parts.pass_time(220.0, sweep_s=130.0)
        return parts


@pytest.mark.stateful
@pytest.mark.timeout(0)
@pytest.mark.parametrize("focus", POINTS)
async def test_no_instance_is_leaked_or_duplicated(focus: str, tmp_path: Path) -> None:
    database = memory_database()  # shared by all runs: creating a database takes as long as a run
    for number in range(FIRST, FIRST + RUNS):
        database.write_sync(empty)
        story = Story(focus, number, tmp_path, database)
        await story.tell()
        assert story.is_affected, f"run {number} never came to {focus}"
        parts = await story.end_well()
        living = Counter(machine.instance.handle.launch_id for machine in story.cloud.alive())
        known = {record.id: record for record in parts.ledger.alive()}
        assert set(living) - set(known) == set(), f"run {number} leaked"
        assert [launch for launch, copies in living.items() if copies > 1] == [], f"run {number} has doubles"
        assert set(known) - set(living) == set(), f"run {number} counts what is not there: {known}"
        assert parts.states() in ({}, {"ready": len(living)}), f"run {number}"
        assert len(living) == parts.fleet.pool(POOL).target, f"run {number} is not as large as it was to be"


def empty(session: Session) -> None:
    """Deletes all rows of the ledger."""
    for table in LEDGER_TABLES:
        session.exec(delete(table))
