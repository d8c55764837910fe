"""Lease, run, submit: a node's first loop."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.failures import Boundary, Failure
from astraflow.contract.ids import NodeId, TaskId
from astraflow.contract.partials import Partial
from astraflow.contract.tasks import Lease, Task
from astraflow.contract.trajectories import Episode
from astraflow.raas.breaker import Breaker
from astraflow.raas.capacity import Capacity
from astraflow.raas.counters import NodeCounters
from astraflow.raas.membership import Membership
from astraflow.raas.outbox import PUSH_BYTES, PUSH_EPISODES, Outbox
from astraflow.raas.recording import Recording
from astraflow.raas.runner import Runner
from astraflow.raas.serving import ServedPolicies
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import span

log = get_logger()

LEASE_WAIT_S = 20.0
"""How long dataflow may hold one request for tasks before it answers that there are none."""

Key: TypeAlias = tuple[TaskId, int]
"""A task and which try of it."""

OUTBOX_PER_SLOT = 4
"""Finished episodes that may wait for dataflow, per slot, before the node leases no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    work: asyncio.Task[None]
    recording: Recording


class TaskLoop:
    """Keeps the node's slots full and every finished episode safe until dataflow has it.

        lease up to the free slots ──► run, each in its own task ──► outbox ──push, many at once──► acknowledged
                                         └──on leaving──► handed back, with what was written so far

    While a call is under way, slots get free and episodes finish: the next call takes them all together.
    """

    def __init__(
        self,
        client: NodeDataClient,
        membership: Membership,
        runner: Runner,
        policies: ServedPolicies,
        *,
        evaluation_capacity: Callable[[], int],
        capacity: Capacity,
        outbox: Outbox,
        breaker: Breaker,
        counters: NodeCounters,
    ) -> None:
        self._client = client
        self._membership = membership
        self._runner = runner
        self._policies = policies
        self._evaluation_capacity = evaluation_capacity
        self._capacity = capacity
        self._outbox = outbox
        self._breaker = breaker
        self._counters = counters
        self._running: dict[Key, _Running] = {}
        self._returning: dict[Key, Partial] = {}
        """On their way back to dataflow."""
        self._changed = asyncio.Event()
        self._leasing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def run(self) -> None:
        """Work until cancelled. Raises: what no retry helps (NotAuthenticated, RunChanged, ...)."""
        async with asyncio.TaskGroup() as tasks:
            self._leasing = tasks.create_task(self._lease(tasks))
            if self._is_closed:
                self._leasing.cancel()
            tasks.create_task(self._submit())

    def held(self) -> tuple[TaskId, ...]:
        """Tasks that run or whose episode is not acknowledged yet: what beats renew."""
        return (*(task for task, _ in (*self._running, *self._returning)), *self._outbox.tasks())

    def stop_leasing(self) -> None:
        """Take no more tasks."""
        self._is_closed = True
        self._capacity.set_open(False)
        if self._leasing is not None:
            self._leasing.cancel()

    async def hand_back(self) -> None:
        """End what runs, and have dataflow hand it to others with what was written so far. No more may be leased.

        Returns once dataflow has acknowledged it. Raises: what no retry helps.
        """
        stopped = dict(self._running)
        await asyncio.gather(*(running.recording.stop() for running in stopped.values()))
        self._returning = {key: _partial(key, one.recording) for key, one in stopped.items() if key in self._running}
        self.abandon()
        await asyncio.gather(*(one.work for one in stopped.values()), return_exceptions=True)
        for piece in _pieces(self._returning.values()):
            try:
                await self._membership.call(partial(self._send_back, piece), what="handing tasks back")
            except InvalidInput as problem:  # they go back without, when the node leaves
                log.error("hand_back_refused", tasks=len(piece), problem=str(problem))
        self._returning = {}

    def abandon(self) -> None:
        """Give up what runs, without a result; dataflow hands it to others when the node leaves."""
        for running in list(self._running.values()):
            running.work.cancel()

    async def idle(self) -> None:
        """Wait until nothing runs and dataflow has every episode."""
        while self._running:
            await self._changed.wait()
        await self._outbox.empty()

    async def _lease(self, tasks: asyncio.TaskGroup) -> None:
        try:
            while True:
                room = await self._room()
                with span("rl.lease") as hop:
                    lease = await self._membership.call(partial(self._ask, room), what="leasing tasks")
                    hop.note(groups=(task.group for task in lease.tasks), node=self._membership.node)
                for task in lease.tasks:
                    self._start(task, tasks)
        finally:
            self._capacity.set_open(False)

    async def _ask(self, room: int, node: NodeId) -> Lease:
        return await self._client.lease(
            node,
            room,
            wait_s=LEASE_WAIT_S,
            versions=self._policies.versions(),
            evaluation_capacity=self._evaluation_capacity(),
        )

    async def _room(self) -> int:
        """How many tasks to ask for; waits until it is at least one and every policy is served."""
        while True:
            is_ready = self._policies.ready.is_set()
            self._capacity.set_open(is_ready and not self._breaker.is_open)
            if not is_ready:
                await self._policies.ready.wait()
                continue
            await self._breaker.rest()
            if (room := self._room_now()) > 0:
                return room
            await self._changed.wait()

    def _room_now(self) -> int:
        if self._breaker.is_open:
            return 1 - len(self._running)
        backlog = self._capacity.slots * OUTBOX_PER_SLOT - len(self._outbox) - len(self._running)
        return min(self._capacity.free, backlog)

    def _start(self, task: Task, tasks: asyncio.TaskGroup) -> None:
        key = (task.id, task.attempt)
        if key in self._running or key in self._outbox:
            log.info("task_leased_twice", task=task.id)  # its lease ran out meanwhile; the first try is as good
            return
        self._capacity.take()
        recording = Recording(task.resume)
        self._running[key] = _Running(work=tasks.create_task(self._run(task, recording)), recording=recording)

    async def _run(self, task: Task, recording: Recording) -> None:
        try:
            with span("rl.episode", group=task.group, task=task.id, attempt=task.attempt) as hop:
                episode = await self._runner.run(task, recording)
                hop.note(node=episode.node, is_failed=episode.failure is not None)
            if not task.pinned:  # a version that cannot be had is no reason to rest from training
                self._breaker.observe(episode.failure)
            self._outbox.put(episode)
        finally:
            del self._running[task.id, task.attempt]
            self._capacity.release()
            self._notify()

    async def _submit(self) -> None:
        while True:
            batch = await self._outbox.next_push()
            try:
                await self._push(batch)
            except InvalidInput as problem:
                await self._push_one_by_one(batch, problem)
            self._outbox.acknowledge(batch)
            self._notify()

    async def _push_one_by_one(self, batch: list[Episode], problem: InvalidInput) -> None:
        """Dataflow refuses a push as a whole: find whose fault it is, and send a failure in its place."""
        log.warning("push_refused", episodes=len(batch), problem=str(problem))
        for episode in batch:
            try:
                await self._push([episode])
            except InvalidInput as refusal:
                self._counters.note_error(f"workflow: {refusal}")
                await self._push_refused(episode, refusal)

    async def _push_refused(self, episode: Episode, refusal: InvalidInput) -> None:
        try:
            await self._push([_as_failure(episode, refusal)])
        except InvalidInput as problem:
            log.error("episode_dropped", task=episode.task, problem=str(problem))

    async def _push(self, episodes: list[Episode]) -> None:
        with span("rl.push", groups=(one.task.rpartition("/")[0] for one in episodes), episodes=len(episodes)):
            fates = await self._membership.call(partial(self._send, episodes), what="pushing episodes")
        for episode, fate in zip(episodes, fates, strict=True):
            if fate != "accepted":
                log.info("episode_not_counted", task=episode.task, fate=fate)

    async def _send(self, episodes: list[Episode], node: NodeId) -> tuple[str, ...]:
        return await self._client.push(node, episodes)

    async def _send_back(self, partials: list[Partial], node: NodeId) -> tuple[str, ...]:
        fates = await self._client.hand_back(node, partials)
        log.info("tasks_handed_back", tasks=len(partials), tokens=sum(one.tokens for one in partials))
        return fates

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _as_failure(episode: Episode, refusal: InvalidInput) -> Episode:
    failure = Failure(boundary=Boundary.WORKFLOW, message=f"dataflow refused the episode: {refusal}"[:500])
    return replace(episode, trajectories=(), failure=failure)


def _partial(key: Key, recording: Recording) -> Partial:
    """What a task goes back with; nothing, when that is more than a recording may hold."""
    task, attempt = key
    tokens = recording.continued_tokens
    try:
        return Partial(task=task, attempt=attempt, generations=recording.handed_back(), continued_tokens=tokens)
    except InvalidInput as problem:
        log.warning("handed_back_without_its_beginning", task=task, problem=str(problem))
        return Partial(task=task, attempt=attempt, generations=())


def _pieces(partials: Iterable[Partial]) -> Iterator[list[Partial]]:
    """As many at once as fit into a call."""
    piece: list[Partial] = []
    size_bytes = 0
    for one in partials:
        piece.append(one)
        size_bytes += one.size_bytes
        if size_bytes >= PUSH_BYTES or len(piece) == PUSH_EPISODES:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece
