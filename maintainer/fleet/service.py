"""The composition root: builds every part, runs them together, and stops them together.

report of dataflow ──► observe ──► follow (rule's targets become plans) ─┐
people, agents ──► fleet plane ──► desk (guard, journal, intents) ◄──────┘
                                      │
providers ◄── actuator (next step of every intent, each second) ◄── ledger ◄── reconciler (each minute)
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from astraflow.client.connect import connect_control
from astraflow.contract.fleet import FleetStatus, KillScope
from astraflow.runtime.aio import periodic, retry
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.database import Database
from astraflow.runtime.logs import get_logger
from astraflow.runtime.service import run_until
from astraflow.wire.listeners import FLEET
from astraflow.wire.pb.fleet_plane_pb2_grpc import add_FleetPlaneServicer_to_server
from astraflow.wire.server import Listen, serving
from maintainer.fleet.actuator import Actuator
from maintainer.fleet.alarms import Alarms
from maintainer.fleet.config import FleetConfig, provider_directory
from maintainer.fleet.desk import Desk
from maintainer.fleet.faults import Faults
from maintainer.fleet.fleet import ITSELF, Fleet
from maintainer.fleet.follower import Follower
from maintainer.fleet.launch_ids import LaunchIds
from maintainer.fleet.ledger import Changes, Ledger, Ownership, open_ledger
from maintainer.fleet.liaison import Liaison
from maintainer.fleet.lifecycle import Sight
from maintainer.fleet.observation import AdviceSource, Observation, Steering, reported_advice
from maintainer.fleet.proposals import Proposals
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import Provider
from maintainer.fleet.reconciler import Reconciler
from maintainer.fleet.records import PoolRecord
from maintainer.fleet.rehearsing import Rehearsals
from maintainer.fleet.replies import Replies
from maintainer.fleet.servicer import FleetPlaneServicer
from maintainer.fleet.switch_file import SwitchFile
from maintainer.fleet.telling import Teller

log = get_logger()

KILL_FILE = "KILL"
"""In the service's directory: while it is there, nothing is launched or retired."""

FIRST_REPORT_S = 60.0
"""How long the name of the run is waited for at the start; later dataflow may be away for any time."""

GOODBYE_S = 12.0
"""Ending all nodes on stopping takes at most this long; what is left then is found by the next start, or dies alone."""


async def serve(
    config: FleetConfig,
    *,
    dataflow: str,
    join_address: str,
    token: str,
    authority: Path | None,
    listen: Listen,
    directory: Path,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    advice: AdviceSource = reported_advice,
    clock: Clock | None = None,
) -> None:
    """Run the fleet service of the run at `dataflow` until `stop` is set. on_ready: called with its address.

    join_address: `HOST:PORT` where machines join. token: of the run. authority: its folder, for a run that speaks TLS.
    Raises: InvalidInput for what cannot be used, Conflict for a directory in use, Unavailable when dataflow stays out
    of reach at the start.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as resources:
        database = await asyncio.to_thread(open_ledger, directory, config.database)
        resources.callback(database.close)
        resources.enter_context(Ownership(directory))
        ledger = Ledger(database)
        await ledger.own()
        await ledger.load(now=clock.wall())
        control = await resources.enter_async_context(connect_control(dataflow, token, authority=authority))
        report = await retry(control.report, what="the first report", give_up_after_s=FIRST_REPORT_S, clock=clock)
        observation = Observation(advice, clock=clock, fresh_s=config.envelope.stale_after_s)
        built = build_providers(config, clock=clock, directory=directory)
        for provider in built.values():
            resources.push_async_callback(provider.close)
        fleet = Fleet(
            config=config,
            ledger=ledger,
            providers=built,
            observation=observation,
            switch_file=SwitchFile(directory / KILL_FILE),
            launch_ids=LaunchIds(),
            clock=clock,
            run=report.run,
            join_address=join_address,
        )
        await seed_pools(fleet)
        service = Service(fleet, control, database)
        async with serving(
            listen, lambda server: add_FleetPlaneServicer_to_server(service.servicer, server), limits=FLEET
        ) as address:
            on_ready(address)
            await run_until(stop, service.run(), drain=service.wind_down)


class Service:
    """The loops, and what they share."""

    def __init__(self, fleet: Fleet, steering: Steering, database: Database) -> None:
        self._fleet = fleet
        self._steering = steering
        replies = Replies(fleet)
        self._desk = Desk(fleet, replies)
        self._actuator = Actuator(fleet, steering)
        self._reconciler = Reconciler(fleet)
        self._follower = Follower(fleet, self._desk)
        self._teller = Teller(fleet, self._desk, steering)
        self._alarms = Alarms(fleet, self._desk, database, self._reconciler.troubles)
        self._is_due = asyncio.Event()
        self._is_news = asyncio.Event()
        self._is_ending = False
        self.servicer = FleetPlaneServicer(
            self._desk,
            Faults(fleet, replies),
            Proposals(fleet, self._desk),
            Liaison(fleet, self._desk, database),
            Rehearsals(fleet, self._desk.plans),
            fleet.ledger,
            self._status,
            self._is_due.set,
        )

    async def run(self) -> None:
        """Until cancelled."""
        times, clock = self._fleet.config.times, self._fleet.clock
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fleet.observation.follow(self._steering, on_advice=self._is_news.set))
            tasks.create_task(periodic(self._reconciler.sweep, every_s=times.sweep_s, clock=clock))
            tasks.create_task(periodic(self._reconciler.observe, every_s=times.tick_s, clock=clock))
            tasks.create_task(periodic(self._fleet.ledger.check_owner, every_s=times.follow_s, clock=clock))
            tasks.create_task(periodic(self._alarms.look, every_s=times.follow_s, clock=clock))
            tasks.create_task(self._follow_on())
            tasks.create_task(periodic(self._teller.tell, every_s=times.follow_s, clock=clock))
            tasks.create_task(self._actuator.run(self._is_due))

    async def wind_down(self) -> None:
        """On stopping: nodes go on, unless the configuration says that they end with the service."""
        self._is_ending = True
        if not self._fleet.config.retire_on_stop or self._fleet.kill is KillScope.ALL:
            return
        for record in self._fleet.ledger.alive():
            await self._fleet.see(record.id, Sight.STOP, message="the fleet service stops (retire_on_stop)")
        try:
            async with asyncio.timeout(GOODBYE_S):
                while self._fleet.ledger.alive():
                    self._is_due.set()
                    await self._fleet.clock.sleep(0.1)
        except TimeoutError:
            log.warning("nodes_left", launches=[record.id for record in self._fleet.ledger.alive()])

    async def _follow_on(self) -> None:
        """When advice changes, at once; and in between, because what was lost comes back without advice."""
        while True:
            self._is_news.clear()
            if not self._is_ending:
                await self._follower.follow()
                self._is_due.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._fleet.config.times.follow_s):
                    await self._is_news.wait()

    def _status(self) -> FleetStatus:
        troubles = tuple(self._reconciler.troubles().values())
        return self._fleet.status(last_sweep_at=self._reconciler.last_sweep_at, troubles=troubles)


def build_providers(config: FleetConfig, *, clock: Clock, directory: Path) -> Mapping[str, Provider]:
    """Those of the configuration, by name. Raises: InvalidInput."""
    return {
        name: providers.build(spec, clock=clock, directory=provider_directory(directory, name))
        for name, spec in config.providers.items()
    }


async def seed_pools(fleet: Fleet) -> None:
    """Make the configuration's pools that the ledger does not have; for those it has, the ledger counts."""

    def decide(ledger: Ledger) -> tuple[Changes, None]:
        fresh = {name: pool for name, pool in fleet.config.pools.items() if name not in ledger.pools}
        pools = tuple(
            PoolRecord(spec=pool.spec(name), version=1, target=pool.first_target) for name, pool in fresh.items()
        )
        decisions = tuple(
            fleet.decision("spec", pool=name, actor=ITSELF, reason="it is in the configuration", message="pool made")
            for name in fresh
        )
        numbered = tuple(
            replace(decision, ordinal=decision.ordinal + offset) for offset, decision in enumerate(decisions)
        )
        return Changes(pools=pools, decisions=numbered), None

    await fleet.ledger.change(decide)
