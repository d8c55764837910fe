"""A node ends by itself when its dataflow stops answering, if it is configured to."""

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import TaskId
from astraflow.contract.nodes import Directive, NodeStatus
from astraflow.contract.rollouts.agent_calls import MAX_LIVE_SESSIONS, AgentCall, LiveSession
from astraflow.raas.counters import NodeCounters
from astraflow.raas.drain_state import DrainState
from astraflow.raas.heartbeats import HeartbeatLoop
from astraflow.raas.membership import Membership
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.tasks.capacity import Capacity
from astraflow.workflows.base import SessionSource
from tests.errors import raises_code
from tests.fakes.agent_session import live_session
from tests.fakes.clock import ManualClock
from tests.raas.parts import FACTS
from tests.raas.test_membership import FakeClient

pytestmark = pytest.mark.anyio


class Silent(FakeClient):
    """Answers joins, and heartbeats while `answers` is set."""

    answers = True
    status: NodeStatus | None = None

    async def heartbeat(self, status: NodeStatus) -> Directive:
        self.status = status
        if not self.answers:
            raise Unavailable("unreachable")
        return Directive(action="continue_running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Workflow with sessions of these ages."""

    ages_s: tuple[float, ...]

    def live_sessions(self) -> list[LiveSession]:
        return [live_session(f"train:{index}/0", age_s=age_s) for index, age_s in enumerate(self.ages_s)]

    def take_failed_calls(self, task: TaskId) -> tuple[AgentCall, ...]:
        return ()


async def joined(client: FakeClient, clock: ManualClock, *sources: SessionSource) -> HeartbeatLoop:
    """Returns the heartbeats of a node that joined and has these sources of sessions."""
    counters = NodeCounters()
    membership = Membership(
        cast("NodeDataClient", client), FACTS, held_tasks=lambda: (), counters=counters, clock=clock
    )
    await membership.join(give_up_after_s=1.0)
    return HeartbeatLoop(
        cast("NodeDataClient", client),
        membership,
        held_tasks=lambda: (),
        versions=dict,
        session_sources=lambda: sources,
        capacity=Capacity(1, clock),
        counters=counters,
        drain_state=DrainState(clock, hand_back_s=1.0),
        transfers=TransferTotals(),
        clock=clock,
    )


async def test_the_oldest_sessions_of_all_workflows_are_reported() -> None:
    client = Silent()
    many = Agents(ages_s=tuple(float(age) for age in range(MAX_LIVE_SESSIONS)))
    await (await joined(client, ManualClock(), many, Agents(ages_s=(7.5, 99.0)))).heartbeat()
    assert client.status is not None
    ages = [session.age_s for session in client.status.sessions]
    assert ages == sorted([*many.ages_s[2:], 7.5, 99.0], reverse=True)
    assert client.status.gauges["agent_sessions"] == MAX_LIVE_SESSIONS + 2


async def test_a_node_without_agents_reports_no_number_of_sessions() -> None:
    client = Silent()
    await (await joined(client, ManualClock())).heartbeat()
    assert client.status is not None
    assert client.status.sessions == ()
    assert "agent_sessions" not in client.status.gauges


async def test_a_node_ends_after_a_long_time_without_an_answer() -> None:
    clock, client = ManualClock(), Silent()
    beats = await joined(client, clock)
    tasks = [asyncio.create_task(beats.run(1.0)), asyncio.create_task(beats.watch_dataflow(60.0))]
    await clock.pass_time(300.0)
    assert not tasks[1].done()
    client.answers = False
    await clock.pass_time(58.0)
    assert not tasks[1].done()
    await clock.pass_time(3.0)
    with raises_code(Unavailable, "node.dataflow_timeout"):
        await tasks[1]
    tasks[0].cancel()
    await asyncio.wait(tasks)


async def test_time_in_which_the_node_was_suspended_is_no_time_without_an_answer() -> None:
    clock, client = ManualClock(), Silent()
    beats = await joined(client, clock)
    tasks = [asyncio.create_task(beats.run(1.0)), asyncio.create_task(beats.watch_dataflow(60.0))]
    await clock.pass_time(5.0)
    client.answers = False
    clock.advance(3600.0)
    await clock.pass_time(50.0)
    assert not tasks[1].done()
    await clock.pass_time(15.0)
    with pytest.raises(Unavailable):
        await tasks[1]
    tasks[0].cancel()
    await asyncio.wait(tasks)
