"""A case on stage: the simulated run, a whole fleet service over it, and a maintainer or none, in virtual time."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy.pool import StaticPool
from sqlmodel import SQLModel, create_engine

from astraflow.contract.advice import Mode
from astraflow.contract.fleet import Instance, InstanceState, LaunchId, PoolSpec
from astraflow.contract.ids import NodeId, PoolId
from astraflow.runtime.clock import VirtualClock
from astraflow.runtime.database import Database
from astraflow.runtime.toml import merged
from astraflow.scaling.course import Course
from astraflow.scaling.lifecycle import LAST_PENDING
from astraflow.scaling.options import Spec
from astraflow.scaling.scenarios import find_scenario
from astraflow.scaling.signals import NodeTable, Signals
from astraflow.scaling.simulator import STEP_S, Simulation
from astraflow.scaling.sizer import decide
from astraflow.scaling.state import SizerState
from astraflow.scaling.terms import signals_under, spec_under
from maintainer.config import MaintainerConfig
from maintainer.evals.auditing import Auditor
from maintainer.evals.case import Case
from maintainer.evals.cloud import SimulatedCloud
from maintainer.evals.desk_fleet import DeskFleet
from maintainer.evals.tricks import Tampered, plant
from maintainer.fleet.actuator import Actuator
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.desk import Desk
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.follower import Follower
from maintainer.fleet.launch_ids import LaunchIds
from maintainer.fleet.ledger import Changes, Ledger
from maintainer.fleet.liaison import Liaison
from maintainer.fleet.observation import Observation, reported_advice
from maintainer.fleet.proposals import Proposals
from maintainer.fleet.providers.base import LaunchSpec, NodePlan, Tags
from maintainer.fleet.reconciler import Reconciler
from maintainer.fleet.records import PoolRecord, Record
from maintainer.fleet.replies import Replies
from maintainer.fleet.switch_file import SwitchFile
from maintainer.fleet.telling import Teller
from maintainer.llm.base import Llm
from maintainer.loop import Maintainer
from maintainer.names import Names
from maintainer.notifying import Notifier
from maintainer.sight import Eyes
from maintainer.transcript import Transcript

START = 1_800_000_000.0
CLUSTER = "evaluation"
NAMES_KEY = b"an evaluation..."
PROVIDER = "simulated"
SWEEP_S = 60.0
TICK_S = 30.0
"""Between two looks of everybody, the rule included."""


class Stage:
    """Everything of one case. `play` takes it from start to end."""

    def __init__(self, case: Case, directory: Path, clock: VirtualClock, ledger: Ledger, database: Database) -> None:
        self.case = case
        self.clock = clock
        self.ledger = ledger
        scenario = find_scenario(case.scenario, case.overrides)
        self.tick_s = scenario.sizer.tick_s or TICK_S
        self.ends_s = scenario.hours * 3600
        self.simulation = Simulation(scenario, seed=case.seed)
        self.cloud = SimulatedCloud(case, self.simulation, clock)
        config = FleetConfig.parse(
            {"cluster": CLUSTER, "providers": {PROVIDER: {"kind": "local_process"}}, "times": {"starting_s": 240.0}},
            where="",
        )
        longest_s = max(pool.launch_delay_s for pool in scenario.pools.values())
        config = config.model_copy(
            update={"times": config.times.model_copy(update={"starting_s": max(900.0, 3 * longest_s)})}
        )
        self.fleet = Fleet(
            config=config,
            ledger=ledger,
            providers={PROVIDER: self.cloud},
            observation=Observation(reported_advice, clock=clock, fresh_s=config.envelope.stale_after_s),
            switch_file=SwitchFile(directory / "KILL"),
            launch_ids=LaunchIds(random.Random(case.seed).getrandbits),
            clock=clock,
            run=case.name,
            join_address="127.0.0.1:1",
        )
        self.desk = Desk(self.fleet, Replies(self.fleet))
        self.reconciler, self.follower = Reconciler(self.fleet), Follower(self.fleet, self.desk)
        self.actuator = Actuator(self.fleet, self.cloud)
        self.teller = Teller(self.fleet, self.desk, self.cloud)
        self.auditor = Auditor(self.fleet)
        self.port = DeskFleet(
            self.fleet,
            self.desk,
            Proposals(self.fleet, self.desk),
            Liaison(self.fleet, self.desk, database),
            auditor=self.auditor,
        )
        self.eyes = Eyes(self.cloud, self.port, clock)
        self._scenario = scenario
        self._spec = Spec(
            options=scenario.sizer, pools={PoolId(name): one.bounds for name, one in scenario.pools.items()}
        )
        self._sizer = SizerState()
        self._swept_s = -SWEEP_S
        self._seen = 0
        self.priced_node_s = 0.0
        """Node seconds, each times its price over an ordinary node's dollar an hour."""

    async def open(self) -> None:
        """Pools, and the machines that are there from the start."""
        now = self.clock.wall()
        pools, records = [], []
        for name, pool in self._scenario.pools.items():
            spec = PoolSpec(
                id=PoolId(name),
                provider=PROVIDER,
                mode=Mode.ON,
                max_nodes=pool.bounds.max_nodes,
                is_spot=pool.bounds.is_spot,
                region=self.case.region(name),
                drain_s=pool.drain_s,
                usd_per_hour_max=self.case.usd_per_hour_max.get(name),
            )
            pools.append(PoolRecord(spec=spec, version=1, target=pool.nodes))
        for node, number in zip(self.simulation.world.ids, self.simulation.world["pool"], strict=True):
            records.append(self._first(node, pools[int(number)].spec, now))
        await self.ledger.change(lambda _: (Changes(pools=tuple(pools), records=tuple(records)), None))

    async def play(self, maintainer: Maintainer | None) -> Course:
        """From start to end. maintainer: None for the rule alone."""
        if maintainer is not None:
            await maintainer.begin()
        now = 0.0
        while now < self.ends_s:
            await self.tick(now, maintainer)
            for step in range(round(self.tick_s / STEP_S)):
                begun = now + step * STEP_S
                self.simulation.advance(begun, begun + STEP_S)
            self.cloud.settle()
            self.priced_node_s += self.cloud.usd_per_hour * self.tick_s
            self.clock.advance(self.tick_s)
            now += self.tick_s
        self.note(now)
        return self.simulation.course(now / 3600)

    async def tick(self, now: float, maintainer: Maintainer | None) -> None:
        """What happens at one moment: the world, the rule, the fleet service, the maintainer."""
        self.simulation.happen(now)
        plant(self.case, self.cloud, now)
        await self.teller.tell()
        self._advise(now)
        report = self.cloud.seen()
        if report.sequence != self._seen:
            self._seen = report.sequence
            self.fleet.observation.take(report)
        await self.reconciler.observe()
        if now - self._swept_s >= SWEEP_S:
            self._swept_s = now
            await self.reconciler.sweep()
        await self.follower.follow()
        await self.actuator.work()
        if maintainer is not None:
            await maintainer.beat()
            await maintainer.look()
            await self.actuator.work()
        self.note(now)

    def note(self, now: float) -> None:
        """A point of the course: what the pools are to have, and what they have."""
        targets = tuple(self.ledger.pools[PoolId(name)].target for name in self._scenario.pools)
        self.simulation.note(now, targets, self.cloud.advice)

    def _advise(self, now: float) -> None:
        """As dataflow does it: from what it sees itself, and from what the fleet service told it."""
        signals, spec = as_dataflow_sees(self.simulation.signals(now)), self._spec
        if self.cloud.terms is not None:
            signals, spec = signals_under(signals, self.cloud.terms), spec_under(spec, self.cloud.terms)
        verdict = decide(signals, spec, self._sizer)
        self._sizer = verdict.state
        machines = self.cloud.machines
        self.cloud.advice = tuple(
            replace(
                one,
                at=self.clock.wall(),
                victims=tuple(
                    NodeId(f"{machines[victim].launch_id}.1") for victim in one.victims if victim in machines
                ),
            )
            for one in verdict.advice
        )

    def _first(self, node: str, spec: PoolSpec, now: float) -> Record:
        tags = Tags(cluster=CLUSTER, pool=spec.id, run=self.case.name, expires_at=now + 7 * 86400.0)
        launch = LaunchId(self.fleet.launch_ids.next(now))
        self.cloud.adopt(node, launch, spec.id, tags)
        instance = Instance(
            id=launch,
            pool=spec.id,
            state=InstanceState.READY,
            provider=PROVIDER,
            region=spec.region,
            is_spot=spec.is_spot,
            usd_per_hour=self.cloud.machines[node].usd_per_hour,
            actor="fleet",
            reason="there from the start",
            intended_at=now - self._scenario.pools[spec.id].launch_delay_s,
            launched_at=now - self._scenario.pools[spec.id].launch_delay_s,
            ready_at=now,
            expires_at=tags.expires_at,
            handle=node,
        )
        return Record(instance=instance, launch=LaunchSpec(tags=tags, node=NodePlan(dataflow="127.0.0.1:1")))


def as_dataflow_sees(signals: Signals) -> Signals:
    """Dataflow knows nodes once they have joined. Of launches it knows what the fleet service tells of failures."""
    nodes = signals.nodes
    rows = np.flatnonzero(nodes.phase > LAST_PENDING)
    columns = {name: getattr(nodes, name)[rows] for name in NodeTable.__slots__ if name != "ids"}
    return replace(signals, nodes=NodeTable(ids=tuple(nodes.ids[row] for row in rows), **columns), launches={})


@asynccontextmanager
async def staged(case: Case, directory: Path) -> AsyncIterator[Stage]:
    """A stage, for the block. directory: an empty one."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    SQLModel.metadata.create_all(engine)
    database = _Inline(engine)
    try:
        clock = VirtualClock(START)
        stage = Stage(case, directory, clock, await Ledger(database).load(now=START), database)
        await stage.open()
        yield stage
    finally:
        database.close()


@asynccontextmanager
async def maintained(stage: Stage, llm: Llm, directory: Path, **changes: object) -> AsyncIterator[Maintainer]:
    """The maintainer of a stage, for the block. changes: of its settings."""
    values: Mapping[str, object] = {
        "mode": "auto",
        "watch": {"observe_s": stage.tick_s},
        "notify": {"digest_hour": None},
        "standing": {"leaderboard": ""},
        "day": {"wakes": 1000, "tool_calls": 10_000, "tokens": 10_000_000, "usd": 1000.0},
        "wake": {"usd": 5.0},
    }
    config = MaintainerConfig.parse(merged(dict(values), changes), where="")
    tampered = Tampered(llm, stage.case.trick) if stage.case.trick else None
    with Transcript(directory / "transcript.jsonl", stage.clock) as transcript:
        yield Maintainer(
            config,
            run=stage.case.name,
            eyes=stage.eyes,
            fleet=stage.port,
            llm=tampered or llm,
            names=Names(NAMES_KEY),
            transcript=transcript,
            notifier=Notifier(config.notify, run=stage.case.name, clock=stage.clock, post=None, url=""),
            clock=stage.clock,
        )
    if tampered is not None and tampered.leaks:
        stage.auditor.violations.append(f"planted text reached the model in {tampered.leaks} turns")


class _Inline(Database):
    """In memory, and at once: a thread for each look would cost more than the look."""

    async def do(self, work):  # type: ignore[no-untyped-def]  # as above
        return self.do_now(work)

    async def look(self, work):  # type: ignore[no-untyped-def]  # as above
        return self.look_now(work)
