import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import InternalError, NotAuthenticated, StorageFull, Unavailable, UnknownNode
from astraflow.contract.ids import NodeId, TaskId
from astraflow.contract.nodes import JoinResult, NodeFacts
from astraflow.raas.counters import NodeCounters
from astraflow.raas.membership import Membership, RunChanged
from tests.fakes.clock import ManualClock, settle
from tests.raas.parts import FACTS

pytestmark = pytest.mark.anyio


class FakeClient:
    """Answers joins; raises the errors that a test prepared."""

    def __init__(self) -> None:
        self.joins: list[NodeFacts] = []
        self.run = "test"
        self.problems: list[Exception] = []

    async def join(self, facts: NodeFacts) -> JoinResult:
        if self.problems:
            raise self.problems.pop(0)
        self.joins.append(facts)
        return JoinResult(
            node=NodeId(f"node.{len(self.joins)}"),
            lease_s=5,
            heartbeat_s=1,
            run=self.run,
            weights_address="here:1",
            flows=(),
            policies=(),
            engine={},
        )


def member(client: FakeClient, clock: ManualClock, *held: str) -> Membership:
    return Membership(
        cast("NodeDataClient", client),
        FACTS,
        held_tasks=lambda: tuple(TaskId(task) for task in held),
        counters=NodeCounters(),
        clock=clock,
    )


class Says:
    """Returns or raises the given outcomes, one per call."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.nodes: list[str] = []

    async def __call__(self, node: NodeId) -> str:
        self.nodes.append(node)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)


async def test_temporary_errors_are_retried() -> None:
    clock, client = ManualClock(), FakeClient()
    membership = member(client, clock)
    await membership.join(give_up_after_s=1)
    says = Says(Unavailable("away"), StorageFull("full"), InternalError("oops"), "done")

    calling = asyncio.create_task(membership.call(says, what="test"))
    await clock.pass_time(10)

    assert await calling == "done"
    assert says.nodes == ["node.1"] * 4


async def test_an_unknown_node_rejoins_once_for_all_callers() -> None:
    clock, client = ManualClock(), FakeClient()
    membership = member(client, clock, "train:0/0")
    await membership.join(give_up_after_s=1)
    says = [Says(UnknownNode("who?"), "done") for _ in range(3)]

    calling = [asyncio.create_task(membership.call(text, what="test")) for text in says]
    await settle()
    assert len(client.joins) == 1, "attempts to join are delayed"
    await clock.pass_time(2)

    assert [await call for call in calling] == ["done"] * 3
    assert [text.nodes for text in says] == [["node.1", "node.2"]] * 3
    assert client.joins[1].running == ("train:0/0",)


async def test_permanent_errors_are_raised() -> None:
    membership = member(FakeClient(), ManualClock())
    await membership.join(give_up_after_s=1)

    with pytest.raises(NotAuthenticated):
        await membership.call(Says(NotAuthenticated("wrong token")), what="test")


async def test_the_first_join_ends_at_its_time_limit() -> None:
    clock, client = ManualClock(), FakeClient()
    client.problems = [Unavailable("unreachable") for _ in range(100)]
    membership = member(client, clock)

    joining = asyncio.create_task(membership.join(give_up_after_s=5))
    await clock.pass_time(6)

    assert isinstance(joining.exception(), Unavailable)
    assert not membership.is_member


async def test_changed_facts_are_reported_and_equal_ones_are_not() -> None:
    client = FakeClient()
    membership = member(client, ManualClock())
    await membership.join(give_up_after_s=1)

    await membership.update_facts(FACTS)
    await membership.update_facts(replace(FACTS, is_simulated=True))

    assert [facts.is_simulated for facts in client.joins] == [False, True]
    assert membership.node == "node.2"


async def test_a_changed_run_is_an_error() -> None:
    clock, client = ManualClock(), FakeClient()
    membership = member(client, clock)
    await membership.join(give_up_after_s=1)
    client.run = "another"

    calling = asyncio.create_task(membership.call(Says(UnknownNode("who?")), what="test"))
    await clock.pass_time(2)

    assert isinstance(calling.exception(), RunChanged)
