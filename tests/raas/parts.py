"""Components of a node, assembled for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.nodes import NodeFacts
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.builders import build_flow
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import Engine
from astraflow.raas.membership import Membership
from astraflow.raas.policies.evaluation_engines import SecondEngines
from astraflow.raas.policies.pinned_versions import PinnedVersions
from astraflow.raas.policies.served_policies import ServedPolicies, ServedPolicy
from astraflow.raas.tasks.capacity import Capacity, CircuitBreaker
from astraflow.raas.tasks.outbox import Outbox
from astraflow.raas.tasks.runner import Runner
from astraflow.raas.tasks.task_loop import TaskLoop
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.wire.channel import dial
from tests.fakes.dataflow import TOKEN, FakeDataflow

SOLVER = PolicyId("solver")
JUDGE = PolicyId("judge")
SOLVER_NODE = NodeId("node.1")

FACTS = NodeFacts(
    name="node",
    pool=PoolId("local"),
    region="here",
    engine="fake",
    is_simulated=False,
    hardware="cpu",
    capacity=4,
    price_per_hour=0.0,
    software="test",
)


def serving(engine: Engine, *, judge: Engine | None = None, is_ready: bool = True) -> ServedPolicies:
    """Returns one policy served by that engine, and the policy `judge` if it has an engine."""
    engines = {SOLVER: engine} | ({} if judge is None else {JUDGE: judge})
    policies = ServedPolicies({name: ServedPolicy(name, served, ByteTokenizer()) for name, served in engines.items()})
    for name in engines:
        policies.set_version(name, Version(0) if is_ready else None)
    return policies


def runner(
    dataflow: FakeDataflow,
    policies: ServedPolicies,
    counters: NodeCounters,
    *,
    membership: Membership | None = None,
    timeout_s: float = 30.0,
    text_share: float = 0.0,
    pinned: PinnedVersions | None = None,
) -> Runner:
    """Returns a runner of the fake's flows."""
    return Runner(
        {spec.id: build_flow(spec) for spec in dataflow.flows},
        policies,
        pinned or unpinned(),
        node=lambda: membership.node if membership else SOLVER_NODE,
        counters=counters,
        clock=SystemClock(),
        timeout_s=timeout_s,
        text_share=text_share,
    )


def unpinned() -> PinnedVersions:
    """Returns engines for pinned tasks that fail when a test uses them."""

    def none(policy: PolicyId) -> Any:
        raise AssertionError(f"{policy} was not to be pinned")

    clock, counters = SystemClock(), NodeCounters()
    return PinnedVersions(
        SecondEngines(none, none, counters=counters, clock=clock), counters=counters, clock=clock, idle_s=60.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Running task loop and its parts."""

    loop: TaskLoop
    membership: Membership
    policies: ServedPolicies
    capacity: Capacity
    counters: NodeCounters
    running: asyncio.Task[None]


@asynccontextmanager
async def working(
    dataflow: FakeDataflow,
    engine: Engine,
    *,
    slots: int = 4,
    is_ready: bool = True,
    break_after: int = 1000,
    pinned: PinnedVersions | None = None,
    evaluation_capacity: int = 0,
    clock: Clock | None = None,
    timeout_s: float = 30.0,
) -> AsyncIterator[Working]:
    """Runs a joined task loop while the block runs."""
    clock, counters, policies = clock or SystemClock(), NodeCounters(), serving(engine, is_ready=is_ready)
    capacity, outbox = Capacity(slots, clock), Outbox()
    loops: list[TaskLoop] = []
    async with dataflow.serving() as address, dial(address, token=TOKEN) as link:
        client = NodeDataClient(link)
        membership = Membership(
            client, FACTS, held_tasks=lambda: loops[0].held_tasks() if loops else (), counters=counters, clock=clock
        )
        await membership.join(give_up_after_s=5)
        run = runner(dataflow, policies, counters, membership=membership, pinned=pinned)
        breaker = CircuitBreaker(lambda: break_after, clock)
        loops.append(
            TaskLoop(
                client,
                membership,
                run,
                policies,
                evaluation_capacity=lambda: evaluation_capacity,
                capacity=capacity,
                outbox=outbox,
                breaker=breaker,
                counters=counters,
                clock=clock,
                timeout_s=timeout_s,
            )
        )
        running = asyncio.create_task(loops[0].run())
        try:
            yield Working(
                loop=loops[0],
                membership=membership,
                policies=policies,
                capacity=capacity,
                counters=counters,
                running=running,
            )
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
