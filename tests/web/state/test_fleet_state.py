"""The page's state of the fleet."""

from pathlib import Path

import pytest

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.plans import Actor, Role
from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.ids import PoolId
from tests.fakes.clock import ManualClock
from tests.fakes.fleet import running_fleet
from web.live.followed_fleet import FleetPoller
from web.live.followed_run import connected_planes
from web.process_settings import Settings
from web.state.annotations import AnnotationLog
from web.state.fleet_state import FleetConnection, FleetState

pytestmark = pytest.mark.anyio


class UnreachableFleet:
    """Fleet service that is unavailable while `answer` is None."""

    def __init__(self, answer: FleetStatus | None) -> None:
        self.answer = answer

    async def status(self) -> FleetStatus:
        if self.answer is None:
            raise Unavailable("connection refused")
        return self.answer

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        return ()


def settings(directory: Path, **more: str) -> Settings:
    return Settings(dataflow="127.0.0.1:9", token="run-token", directory=directory, **more)


async def test_without_a_configured_fleet_service_the_state_is_absent(tmp_path: Path) -> None:
    async with connected_planes(settings(tmp_path)) as (_, client):
        assert client is None
    assert FleetState(ManualClock(), is_absent=True).connection is FleetConnection.ABSENT


async def test_the_poller_has_the_newest_status_and_its_age(tmp_path: Path) -> None:
    clock = ManualClock()
    state = FleetState(clock, is_absent=False)
    async with (
        running_fleet(tmp_path, nodes=2) as fleet,
        connected_planes(settings(tmp_path, fleet=fleet.address)) as (_, client),
    ):
        assert client is not None
        log = AnnotationLog()
        poller = FleetPoller(client, state, clock=clock, on_decisions=log.add_decisions)
        assert (state.connection, state.age_s, state.is_stale) == (FleetConnection.CONNECTING, None, True)
        await poller.poll()
        assert (state.connection, state.age_s, state.is_stale) == (FleetConnection.LIVE, 0.0, False)
        pool = state.pool("eu")
        assert pool is not None
        assert pool.target == 2
        assert state.pool("nowhere") is None
        actor = Actor(name="ada", role=Role.ADMIN)
        await client.kill_switch(KillScope.ALL, actor=actor, key="kill", reason="incident")
        await poller.poll()
        assert [note.text for note in log.annotations][-1].startswith("Kill switch. ")
        clock.advance(6)
        assert (state.age_s, state.is_stale) == (6.0, True)


async def test_the_last_status_is_kept_when_the_service_is_lost(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_fleet(tmp_path) as fleet:
        source, state = UnreachableFleet(fleet.status()), FleetState(clock, is_absent=False)
    poller = FleetPoller(source, state, clock=clock)
    await poller.poll()
    source.answer = None
    clock.advance(3)
    await poller.poll()
    assert (state.connection, state.problem, state.age_s) == (FleetConnection.LOST, "connection refused", 3.0)
    assert state.status is not None


async def test_a_service_that_was_never_reached_is_not_called_lost() -> None:
    clock = ManualClock()
    state = FleetState(clock, is_absent=False)
    await FleetPoller(UnreachableFleet(None), state, clock=clock).poll()
    assert (state.connection, state.problem) == (FleetConnection.CONNECTING, "connection refused")
