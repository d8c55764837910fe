"""Client process of the load test: some hundred simulated nodes, each with a connection of its own.

    python -m benchmarks.many_nodes.nodes FLEET     (see `Fleet`; the token is read from standard input)

A node makes the calls of a real one through AstraFlow's clients: it joins, sends heartbeats with all metrics, leases a
task, waits as long as an episode takes, and pushes its result. The process prints a line when all of its nodes have
joined; it begins to measure at a line `measure` on standard input, and at `stop` prints its figures and exits.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import uvloop

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.ids import NodeId, PoolId, TaskId, Version
from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.nodes import NodeFacts, NodeStatus
from astraflow.wire.channel import dial
from benchmarks.dataflow.load import POLICY, Sequences

LEASE_WAIT_S = 20.0
RETRY_S = 2.0
POOLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Simulated nodes of one process."""

    address: str
    first: int
    """Number of the first node."""
    nodes: int
    heartbeat_s: float
    episode_s: float
    """Mean duration of an episode; durations vary between half and one and a half of it."""
    tokens: int
    """Tokens of a sequence."""
    joins_at_once: int = 32


@dataclass(slots=True)
class Figures:
    """Measurements of a process since `measure`: milliseconds of each call, and failed calls by error."""

    heartbeat_ms: list[float] = field(default_factory=list)
    lease_ms: list[float] = field(default_factory=list)
    push_ms: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


class SimulatedNode:
    """Node that runs one episode at a time."""

    def __init__(self, client: NodeDataClient, number: int, fleet: Fleet, sequences: Sequences) -> None:
        self._client = client
        self._number = number
        self._fleet = fleet
        self._sequences = sequences
        self._random = random.Random(number)
        self._running: tuple[TaskId, ...] = ()
        self._done = 0
        self.node = NodeId("unknown.0")

    async def join(self) -> None:
        """Joins the run."""
        facts = NodeFacts(
            name=f"load-{self._number}",
            pool=PoolId(f"pool-{self._number % POOLS}"),
            region="eu-west-1",
            engine="load",
            is_simulated=True,
            hardware="simulated",
            capacity=1,
            price_per_hour=2.0,
            software="load test",
        )
        self.node = (await self._client.join(facts)).node

    async def beat(self, figures: Figures) -> None:
        """Sends heartbeats until cancelled; nodes are out of step."""
        await asyncio.sleep(self._random.uniform(0, self._fleet.heartbeat_s))
        while True:
            began = time.perf_counter()
            await self._client.heartbeat(self._status())
            ended = time.perf_counter()
            figures.heartbeat_ms.append(1000 * (ended - began))
            await asyncio.sleep(max(0.0, began + self._fleet.heartbeat_s - ended))

    async def work(self, figures: Figures) -> None:
        """Leases, waits and pushes until cancelled."""
        await asyncio.sleep(self._random.uniform(0, self._fleet.episode_s))
        while True:
            began = time.perf_counter()
            lease = await self._client.lease(self.node, 1, wait_s=LEASE_WAIT_S, versions={POLICY: Version(0)})
            figures.lease_ms.append(1000 * (time.perf_counter() - began))
            self._running = tuple(task.id for task in lease.tasks)
            if not lease.tasks:
                continue
            await asyncio.sleep(self._fleet.episode_s * self._random.uniform(0.5, 1.5))
            episodes = [self._sequences.episode(task, self.node, version=Version(0)) for task in lease.tasks]
            began = time.perf_counter()
            outcomes = await self._client.push(self.node, episodes)
            figures.push_ms.append(1000 * (time.perf_counter() - began))
            self._running = ()
            self._done += len(outcomes)
            if set(outcomes) != {"accepted"}:
                raise ValueError(f"a push was not accepted: {outcomes}")

    def _status(self) -> NodeStatus:
        counters = {name: float(self._done) for name in NODE_COUNTERS}
        counters["tokens_generated"] = float(self._done * self._sequences.written)
        gauges = dict.fromkeys(NODE_GAUGES, 1.5)
        versions = {POLICY: Version(0)}
        return NodeStatus(node=self.node, running=self._running, versions=versions, counters=counters, gauges=gauges)


async def run(fleet: Fleet, token: str) -> None:
    """Runs the nodes until `stop`."""
    figures = Figures()
    sequences = Sequences(fleet.tokens)
    async with AsyncExitStack() as stack:
        nodes = [
            SimulatedNode(
                NodeDataClient(
                    await stack.enter_async_context(dial(fleet.address, token=token, has_own_connection=True))
                ),
                fleet.first + index,
                fleet,
                sequences,
            )
            for index in range(fleet.nodes)
        ]
        began_at = time.time()
        async with _tasks() as tasks:
            slots = asyncio.Semaphore(fleet.joins_at_once)
            await asyncio.gather(*(_join(node, slots, tasks, figures) for node in nodes))
            _print({"began_at": began_at, "ended_at": time.time()})
            await asyncio.to_thread(sys.stdin.readline)
            cpu_s = _cpu_s()
            for values in (figures.heartbeat_ms, figures.lease_ms, figures.push_ms, figures.errors):
                values.clear()
            await asyncio.to_thread(sys.stdin.readline)
            _print({**asdict(figures), "cpu_s": _cpu_s() - cpu_s})


async def _join(
    node: SimulatedNode, slots: asyncio.Semaphore, tasks: "list[asyncio.Task[None]]", figures: Figures
) -> None:
    async with slots:
        await node.join()
    tasks += [asyncio.create_task(_counted(loop, figures)) for loop in (node.beat, node.work)]


async def _counted(loop: Any, figures: Figures) -> None:
    """Runs a loop of a node again after an error, which is counted."""
    while True:
        try:
            await loop(figures)
        except Exception as problem:  # every error of a call is a figure of the load test
            name = getattr(problem, "code", type(problem).__name__)
            figures.errors[name] = figures.errors.get(name, 0) + 1
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))


@asynccontextmanager
async def _tasks() -> AsyncIterator["list[asyncio.Task[None]]"]:
    """Yields a list of tasks, which are cancelled after the block."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cpu_s() -> float:
    times = psutil.Process().cpu_times()
    return times.user + times.system


def _print(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(run(Fleet(**json.loads(sys.argv[1])), sys.stdin.readline().strip()))
