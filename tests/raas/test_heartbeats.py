"""A node ends by itself when its dataflow stops answering, if it is configured to."""

import asyncio
from typing import cast

import pytest

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import Unavailable
from astraflow.contract.nodes import Directive, NodeStatus
from astraflow.raas.capacity import Capacity
from astraflow.raas.counters import NodeCounters
from astraflow.raas.drain_state import DrainState
from astraflow.raas.heartbeats import HeartbeatLoop
from astraflow.raas.membership import Membership
from astraflow.raas.transfer_totals import TransferTotals
from tests.fakes.clock import ManualClock
from tests.raas.parts import FACTS
from tests.raas.test_membership import FakeClient

pytestmark = pytest.mark.anyio


class Silent(FakeClient):
    """Answers joins, and heartbeats while `answers` is set."""

    answers = True

    async def heartbeat(self, status: NodeStatus) -> Directive:
        if not self.answers:
            raise Unavailable("unreachable")
        return Directive(action="continue_running")


async def test_a_node_ends_after_a_long_time_without_an_answer() -> None:
    clock, client, counters = ManualClock(), Silent(), NodeCounters()
    membership = Membership(
        cast("NodeDataClient", client), FACTS, held_tasks=lambda: (), counters=counters, clock=clock
    )
    await membership.join(give_up_after_s=1.0)
    beats = HeartbeatLoop(
        cast("NodeDataClient", client),
        membership,
        held_tasks=lambda: (),
        versions=dict,
        session_sources=tuple,
        capacity=Capacity(1, clock),
        counters=counters,
        drain_state=DrainState(clock, hand_back_s=1.0),
        transfers=TransferTotals(),
        clock=clock,
    )
    tasks = [asyncio.create_task(beats.run(1.0)), asyncio.create_task(beats.watch_dataflow(60.0))]
    await clock.pass_time(300.0)
    assert not tasks[1].done()
    client.answers = False
    await clock.pass_time(58.0)
    assert not tasks[1].done()
    await clock.pass_time(3.0)
    with pytest.raises(Unavailable, match="60 s"):
        await tasks[1]
    tasks[0].cancel()
    await asyncio.wait(tasks)
