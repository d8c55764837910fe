"""A node whose dataflow does not answer any more ends by itself, if it was told to."""

import asyncio
from typing import cast

import pytest

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import Unavailable
from astraflow.contract.nodes import Directive, NodeStatus
from astraflow.raas.beats import Beats
from astraflow.raas.capacity import Capacity
from astraflow.raas.counters import NodeCounters
from astraflow.raas.links import Links
from astraflow.raas.membership import Membership
from astraflow.raas.orders import Orders
from tests.fakes.clock import ManualClock
from tests.raas.parts import FACTS
from tests.raas.test_membership import FakeClient

pytestmark = pytest.mark.anyio


class Silent(FakeClient):
    """Takes joins; answers beats while it is asked to."""

    answers = True

    async def beat(self, status: NodeStatus) -> Directive:
        if not self.answers:
            raise Unavailable("nobody is there")
        return Directive(action="go_on")


async def test_a_node_ends_when_nothing_was_heard_for_long() -> None:
    clock, client, counters = ManualClock(), Silent(), NodeCounters()
    membership = Membership(cast("NodeDataClient", client), FACTS, held=lambda: (), counters=counters, clock=clock)
    await membership.join(give_up_after_s=1.0)
    beats = Beats(
        cast("NodeDataClient", client),
        membership,
        held=lambda: (),
        versions=dict,
        capacity=Capacity(1, clock),
        counters=counters,
        orders=Orders(clock, hand_back_s=1.0),
        links=Links(),
        clock=clock,
    )
    tasks = [asyncio.create_task(beats.run(1.0)), asyncio.create_task(beats.watch(60.0))]
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
