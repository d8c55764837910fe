"""One load process: a node that pushes prepared sequences, or a trainer that only acknowledges batches.

    python -m benchmarks.dataflow.load JOB     (see `Job`; the token is read from standard input)

They call the planes through AstraFlow's own clients, as nodes and trainers do, and do nothing else: the measurement
covers dataflow, the wire and the clients. The process prints its figures as one JSON object to standard output.
"""

import asyncio
import json
import mmap
import os
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from astraflow.client.data_plane import NodeDataClient, TrainerDataClient
from astraflow.contract.batches import StepReport
from astraflow.contract.ids import NodeId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.nodes import NodeFacts, NodeStatus
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.token_columns import TokenColumn, TokenColumns, columns_nbytes
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.runtime.service import prepare_for_large_messages
from astraflow.wire.channel import dial

POLICY = PolicyId("solver")
PROMPT_TOKENS = 64
PUSH_BYTES = 4 * 2**20
PUSHES_AT_ONCE = 3
BEAT_S = 1.0
LOOK_S = 0.005
"""Seconds between a node's checks for newer weights."""
LEAST_PUSH = 64
"""Sequences, where no rate is set."""
LEASED_AHEAD = 4
"""Tasks that a node leases ahead, in pushes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Parameters of a load process."""

    role: str
    """`node`, `trainer`."""
    address: str
    name: str = "load"
    sequences: int = 0
    """Stop after about this many are acknowledged (node) or trained (trainer)."""
    tokens: int = 512
    """Tokens of a sequence, `PROMPT_TOKENS` of them context."""
    top_tokens: int = 0
    """Most likely tokens that are recorded with their log-probabilities for each generated token; 0: none."""
    per_push: int = 0
    """Sequences of a push; 0 fills it up to `PUSH_BYTES`."""
    rate: float = 0.0
    """Sequences a second; 0 for no limit."""
    warm_up_s: float = 0.0
    """Calls that begin before it are not in the latencies: processes and connections start. Seconds."""
    version_file: str = ""
    """File to which the trainer writes its version, in place of the weight plane."""


@dataclass(slots=True)
class Figures:
    """Measurements of a load process."""

    sequences: int = 0
    began_at: float = 0.0
    """Unix seconds."""
    ended_at: float = 0.0
    cpu_s: float = 0.0
    lease_ms: list[float] = field(default_factory=list)
    push_ms: list[float] = field(default_factory=list)


class Sequences:
    """Prepared results of one length."""

    def __init__(self, tokens: int, top_tokens: int = 0) -> None:
        self.written = tokens - PROMPT_TOKENS
        """Generated tokens of a sequence."""
        self._tokens = np.arange(tokens, dtype=np.int32)
        self._logprobs = np.full(self.written, -0.5, dtype=np.float32)
        self._columns = top_columns(self.written, top_tokens) if top_tokens else {}
        self._context = Span(author=Author.CONTEXT, length=PROMPT_TOKENS)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays of a sequence."""
        return self._tokens.nbytes + self._logprobs.nbytes + columns_nbytes(self._columns)

    def episode(self, task: Task, node: NodeId, *, version: Version) -> Episode:
        """Returns the result of a task, generated with this version."""
        trajectory = Trajectory(
            policy=POLICY,
            tokens=self._tokens,
            logprobs=self._logprobs,
            spans=(self._context, Span(author=Author.MODEL, length=self.written, version=version)),
            reward=task.member / 8,
            token_columns=self._columns,
        )
        return Episode(task=task.id, node=node, trajectories=(trajectory,), duration_s=1.0)


def top_columns(tokens: int, count: int) -> TokenColumns:
    """Returns the most likely tokens of random distributions over 100 tokens."""
    draws = np.random.default_rng(1)
    logits = draws.normal(0, 3, (tokens, 100))
    ids = np.argsort(-logits, 1)[:, :count]
    logprobs = np.take_along_axis(logits, ids, 1) - np.log(np.exp(logits).sum(1, keepdims=True))
    return {TokenColumn.TOP_TOKENS: ids.astype("<i4"), TokenColumn.TOP_LOGPROBS: logprobs.astype("<f2")}


class SharedVersion:
    """A number in a file that processes share; 0 without a file."""

    def __init__(self, path: str) -> None:
        self._memory: mmap.mmap | None = None
        if path:
            with Path(path).open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 8)

    def get(self) -> Version:
        """Returns the last written number."""
        return Version(int.from_bytes(self._memory[:8], "little") if self._memory else 0)

    def set(self, version: int) -> None:
        """Writes the number."""
        if self._memory:
            self._memory[:8] = version.to_bytes(8, "little")


class LoadNode:
    """Node that leases ahead and pushes several results at a time."""

    def __init__(self, client: NodeDataClient, job: Job) -> None:
        self._client = client
        self._job = job
        self._tasks: deque[Task] = deque()
        self._changed = asyncio.Event()
        self._held: set[str] = set()
        self.figures = Figures()
        self._version = SharedVersion(job.version_file)
        self._sequences = Sequences(job.tokens, job.top_tokens)
        self._per_push = job.per_push or max(8, PUSH_BYTES // self._sequences.size_bytes)

    async def run(self) -> None:
        """Runs until enough results are acknowledged."""
        facts = NodeFacts(
            name=self._job.name,
            pool=PoolId("load"),
            region="",
            engine="load",
            is_simulated=True,
            hardware="",
            capacity=self._per_push,
            price_per_hour=0.0,
            software="",
        )
        self._node = (await self._client.join(facts)).node
        self.figures.began_at = time.time()
        self._measured_from = time.perf_counter() + self._job.warm_up_s
        async with asyncio.TaskGroup() as group:
            leasing = group.create_task(self._lease())
            beating = group.create_task(self._beat())
            pushing = [group.create_task(self._push()) for _ in range(PUSHES_AT_ONCE)]
            await asyncio.gather(*pushing)
            self.figures.ended_at = time.time()
            leasing.cancel()
            beating.cancel()
        await self._client.leave(self._node, reason="done")

    async def _beat(self) -> None:
        """Sends a heartbeat with the held tasks every second, and at once when the node serves newer weights."""
        beat_at, announced = 0.0, self._served()
        while True:
            is_due = time.monotonic() >= beat_at
            if is_due or self._served() != announced:
                announced = self._served()
                held = tuple(TaskId.unchecked(task) for task in self._held) if is_due else ()
                await self._client.heartbeat(NodeStatus(node=self._node, running=held, versions=announced))
                beat_at = time.monotonic() + BEAT_S if is_due else beat_at
            await asyncio.sleep(LOOK_S)

    async def _lease(self) -> None:
        while True:
            room = LEASED_AHEAD * self._per_push - len(self._tasks)
            if room < self._per_push:
                await self._wait()
                continue
            began = time.perf_counter()
            capacity = self._per_push if self._job.rate else room
            lease = await self._client.lease(self._node, capacity, wait_s=10.0, versions=self._served())
            self._record(self.figures.lease_ms, began)
            self._tasks.extend(lease.tasks)
            self._held.update(task.id for task in lease.tasks)
            self._notify()

    async def _push(self) -> None:
        least = min(self._per_push, LEAST_PUSH)
        while self.figures.sequences < self._job.sequences:
            while len(self._tasks) < least:
                await self._wait()
            tasks = [self._tasks.popleft() for _ in range(min(self._per_push, len(self._tasks)))]
            self._notify()
            if self._job.rate:
                await asyncio.sleep(PUSHES_AT_ONCE * self._per_push / self._job.rate)
            version = self._version.get()
            episodes = [self._sequences.episode(task, self._node, version=version) for task in tasks]
            began = time.perf_counter()
            outcomes = await self._client.push(self._node, episodes)
            self._record(self.figures.push_ms, began)
            if set(outcomes) != {"accepted"}:
                raise SystemExit(f"refused: {set(outcomes)}")
            self._held.difference_update(task.id for task in tasks)
            self.figures.sequences += len(outcomes)

    def _record(self, latencies: list[float], began: float) -> None:
        if began >= self._measured_from:
            latencies.append(1000 * (time.perf_counter() - began))

    def _served(self) -> dict[PolicyId, Version]:
        return {POLICY: self._version.get()}

    async def _wait(self) -> None:
        changed = self._changed
        await changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def train(client: TrainerDataClient, job: Job) -> Figures:
    """Pulls and acknowledges batch after batch."""
    figures = Figures()
    welcome = await client.attach(version=Version(0), backend="load", is_simulated=True)
    version = welcome.acknowledged_steps
    shared_version = SharedVersion(job.version_file)
    figures.began_at = time.time()
    while figures.sequences < job.sequences:
        batch = await client.pull_batch(version=Version(version), wait_s=20.0)
        if batch is None:
            raise SystemExit("no batch came")
        figures.sequences += len(batch.rows)
        version += 1
        shared_version.set(version)
        await client.report_step(
            StepReport(
                batch=batch.id, policy=POLICY, version=Version(version), wait_s=0.0, compute_s=0.0, publish_s=0.0
            )
        )
    figures.ended_at = time.time()
    return figures


async def work(job: Job, token: str) -> Figures:
    """Runs a job."""
    async with dial(job.address, token=token) as link:
        if job.role == "trainer":
            figures = await train(TrainerDataClient(link, POLICY), job)
        else:
            node = LoadNode(NodeDataClient(link), job)
            await node.run()
            figures = node.figures
    times = psutil.Process(os.getpid()).cpu_times()
    figures.cpu_s = times.user + times.system
    return figures


def main() -> None:
    """Runs the job of the command line."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    prepare_for_large_messages()
    figures = uvloop.run(work(Job(**spec), sys.stdin.readline().strip()))
    # With PYTHONUNBUFFERED, sys.stdout loses the rest of a write that a signal interrupts, which a full pipe invites.
    with open(sys.stdout.fileno(), "w", closefd=False) as output:
        json.dump(asdict(figures), output)


if __name__ == "__main__":
    main()
