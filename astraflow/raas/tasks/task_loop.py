"""Task loop of a node: leases tasks, runs them and submits the episodes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, TaskId
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Lease, Task
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.raas.counters import NodeCounters
from astraflow.raas.membership import Membership
from astraflow.raas.policies.recorder import RolloutRecorder
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.raas.tasks.capacity import Capacity, CircuitBreaker
from astraflow.raas.tasks.outbox import PUSH_BYTES, PUSH_EPISODES, Outbox
from astraflow.raas.tasks.runner import Runner
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from astraflow.runtime.tracing import collect_hops, span

log = get_logger()

LEASE_WAIT_S = 20.0
"""Maximum time dataflow may hold a lease request before it answers without tasks."""

TaskAttempt: TypeAlias = tuple[TaskId, int]
"""Id of a task and number of its attempt."""

OUTBOX_PER_SLOT = 4
"""Maximum unacknowledged episodes per slot; at the limit the node stops leasing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningTask:
    work: asyncio.Task[None]
    recorder: RolloutRecorder
    began_at: float


HUNG_S = 30.0
"""Time after its time limit at which an episode that ignored its cancellation is given up. Seconds."""

CHECK_S = 5.0
"""Interval of that check. Seconds."""


class TaskLoop:
    """Fills the slots of the node and holds every finished episode until dataflow acknowledges it.

        lease up to the free slots ──► run, each in its own task ──► outbox ──push in batches──► acknowledged
                                         └──on leaving──► handed back, with the partial rollout

    An episode that does not end at its time limit, because its workflow ignores the cancellation, is given up: its task
    fails, so that dataflow leases it to another node.

    Slots that become free and episodes that finish during a call are batched in the next call.
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
        breaker: CircuitBreaker,
        counters: NodeCounters,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        """timeout_s: time limit of an episode. Seconds."""
        self._client = client
        self._membership = membership
        self._runner = runner
        self._policies = policies
        self._evaluation_capacity = evaluation_capacity
        self._capacity = capacity
        self._outbox = outbox
        self._breaker = breaker
        self._counters = counters
        self._clock = clock
        self._timeout_s = timeout_s
        self._running: dict[TaskAttempt, _RunningTask] = {}
        self._returning: dict[TaskAttempt, PartialRollout] = {}
        """Tasks being handed back to dataflow."""
        self._changed = asyncio.Event()
        self._leasing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def run(self) -> None:
        """Runs until cancelled. Raises: errors that a retry does not cure (NotAuthenticated, RunChanged, ...)."""
        async with asyncio.TaskGroup() as tasks:
            self._leasing = tasks.create_task(self._lease(tasks))
            if self._is_closed:
                self._leasing.cancel()
            tasks.create_task(self._submit())
            tasks.create_task(periodic(self._give_up_hung, every_s=CHECK_S, clock=self._clock))

    def held_tasks(self) -> tuple[TaskId, ...]:
        """Returns the tasks that run or whose episode is not acknowledged; heartbeats renew their leases."""
        return (*(task for task, _ in (*self._running, *self._returning)), *self._outbox.tasks())

    def stop_leasing(self) -> None:
        self._is_closed = True
        self._capacity.set_accepting(False)
        if self._leasing is not None:
            self._leasing.cancel()

    async def hand_back(self) -> None:
        """Stops running tasks and hands them back to dataflow with their partial rollouts. Requires `stop_leasing`.

        Returns once dataflow has acknowledged them. Raises: errors that a retry does not cure.
        """
        stopped = dict(self._running)
        await asyncio.gather(*(running_task.recorder.stop() for running_task in stopped.values()))
        self._returning = {
            key: _partial_rollout(key, running_task.recorder)
            for key, running_task in stopped.items()
            if key in self._running
        }
        self.cancel_running()
        await asyncio.gather(*(running_task.work for running_task in stopped.values()), return_exceptions=True)
        for batch in _push_sized_batches(self._returning.values()):
            try:
                await self._membership.call(partial(self._send_partial_rollouts, batch), what="handing tasks back")
            except InvalidInput as problem:  # they go back without partial rollouts when the node leaves
                log.error("hand_back_refused", tasks=len(batch), problem=str(problem))
        self._returning = {}

    def cancel_running(self) -> None:
        """Cancels running tasks without a result; dataflow reassigns them when the node leaves."""
        for running_task in list(self._running.values()):
            running_task.work.cancel()

    def check_slots(self) -> None:
        """Checks again for free slots, after their limit was raised."""
        self._notify()

    async def wait_until_idle(self) -> None:
        """Waits until no task runs and dataflow has every episode."""
        while self._running:
            await self._changed.wait()
        await self._outbox.wait_until_empty()

    async def _lease(self, tasks: asyncio.TaskGroup) -> None:
        try:
            while True:
                free_slots = await self._wait_for_slots()
                with collect_hops() as hops, span("rl.lease") as trace_span:
                    lease = await self._membership.call(partial(self._request_lease, free_slots), what="leasing tasks")
                    trace_span.annotate(groups=(task.group for task in lease.tasks), node=self._membership.node)
                for task in lease.tasks:
                    self._start(task, tasks, leased=hops)
        finally:
            self._capacity.set_accepting(False)

    async def _request_lease(self, free_slots: int, node: NodeId) -> Lease:
        return await self._client.lease(
            node,
            free_slots,
            wait_s=LEASE_WAIT_S,
            versions=self._policies.versions(),
            evaluation_capacity=self._evaluation_capacity(),
        )

    async def _wait_for_slots(self) -> int:
        """Returns the number of tasks to lease; waits until it is at least one and every policy is served."""
        while True:
            is_ready = self._policies.ready.is_set()
            self._capacity.set_accepting(is_ready and not self._breaker.is_open)
            if not is_ready:
                await self._policies.ready.wait()
                continue
            await self._breaker.wait_for_retry()
            if (free_slots := self._free_slots()) > 0:
                return free_slots
            await self._changed.wait()

    def _free_slots(self) -> int:
        if self._breaker.is_open:
            return 1 - len(self._running)
        backlog = self._capacity.slots * OUTBOX_PER_SLOT - len(self._outbox) - len(self._running)
        return min(self._capacity.free_slots, backlog)

    def _start(self, task: Task, tasks: asyncio.TaskGroup, *, leased: list[Hop]) -> None:
        key = (task.id, task.attempt)
        if key in self._running or key in self._outbox:
            log.info("task_leased_twice", task=task.id)  # its lease expired; the running attempt is equivalent
            return
        self._capacity.acquire()
        recorder = RolloutRecorder(task.resume_from)
        work = tasks.create_task(self._run(task, recorder, leased))
        self._running[key] = _RunningTask(work=work, recorder=recorder, began_at=self._clock.now())

    async def _run(self, task: Task, recorder: RolloutRecorder, leased: list[Hop]) -> None:
        key = (task.id, task.attempt)
        try:
            with span("rl.episode", group=task.group, task=task.id, attempt=task.attempt) as trace_span:
                episode = await self._runner.run(task, recorder)
                trace_span.annotate(node=episode.node, is_failed=episode.failure is not None)
            if not self._is_own(key):
                return  # it was given up
            if not task.pinned:  # an unavailable version must not stop training
                self._breaker.record_outcome(episode.failure)
            self._outbox.put(replace(episode, hops=(*leased, *episode.hops)) if episode.hops else episode)
        finally:
            if self._is_own(key):
                self._end(key)

    def _is_own(self, key: TaskAttempt) -> bool:
        """Returns whether the current asyncio task still runs this task for the node."""
        running_task = self._running.get(key)
        return running_task is not None and running_task.work is asyncio.current_task()

    def _end(self, key: TaskAttempt) -> None:
        del self._running[key]
        self._capacity.release()
        self._notify()

    async def _give_up_hung(self) -> None:
        """Fails the tasks whose episode has not ended although its time is long over."""
        due = self._clock.now() - self._timeout_s - HUNG_S
        for key in [key for key, running_task in self._running.items() if running_task.began_at < due]:
            running_task = self._running[key]
            running_task.work.cancel()
            self._end(key)
            message = f"the episode did not end {HUNG_S:g} s after its time limit of {self._timeout_s:g} s"
            self._counters.add("episodes_failed")
            self._counters.note_error(f"workflow: {message}")
            log.error("episode_given_up", task=key[0], limit_s=self._timeout_s)
            failure = Failure(boundary=Boundary.ENGINE, message=message)
            self._outbox.put(
                Episode(
                    task=key[0],
                    node=self._membership.node,
                    trajectories=(),
                    failure=failure,
                    duration_s=self._clock.now() - running_task.began_at,
                    attempt=key[1],
                )
            )

    async def _submit(self) -> None:
        while True:
            batch = await self._outbox.next_batch()
            try:
                await self._push(batch)
            except InvalidInput as problem:
                await self._push_one_by_one(batch, problem)
            self._outbox.acknowledge(batch)
            self._notify()

    async def _push_one_by_one(self, batch: list[Episode], problem: InvalidInput) -> None:
        """Pushes the episodes of a refused batch singly, and a failure in place of each invalid one."""
        log.warning("push_refused", episodes=len(batch), problem=str(problem))
        for episode in batch:
            try:
                await self._push([episode])
            except InvalidInput as refusal:
                self._counters.note_error(f"workflow: {refusal}")
                await self._push_refused(episode, refusal)

    async def _push_refused(self, episode: Episode, refusal: InvalidInput) -> None:
        try:
            await self._push([_failed_episode(episode, refusal)])
        except InvalidInput as problem:
            log.error("episode_dropped", task=episode.task, problem=str(problem))

    async def _push(self, episodes: list[Episode]) -> None:
        with span("rl.push", groups=(episode.task.rpartition("/")[0] for episode in episodes), episodes=len(episodes)):
            outcomes = await self._membership.call(partial(self._send, episodes), what="pushing episodes")
        for episode, outcome in zip(episodes, outcomes, strict=True):
            if outcome != "accepted":
                log.info("episode_not_counted", task=episode.task, outcome=outcome)

    async def _send(self, episodes: list[Episode], node: NodeId) -> tuple[str, ...]:
        return await self._client.push(node, episodes)

    async def _send_partial_rollouts(self, partials: list[PartialRollout], node: NodeId) -> tuple[str, ...]:
        outcomes = await self._client.hand_back(node, partials)
        log.info("tasks_handed_back", tasks=len(partials), tokens=sum(rollout.tokens for rollout in partials))
        return outcomes

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _failed_episode(episode: Episode, refusal: InvalidInput) -> Episode:
    failure = Failure(boundary=Boundary.WORKFLOW, message=f"dataflow refused the episode: {refusal}"[:500])
    return replace(episode, trajectories=(), failure=failure)


def _partial_rollout(key: TaskAttempt, recorder: RolloutRecorder) -> PartialRollout:
    """Returns the partial rollout of a task; without generations if they exceed the limits of a recording."""
    task, attempt = key
    tokens = recorder.continued_tokens
    try:
        return PartialRollout(
            task=task, attempt=attempt, generations=recorder.generations_to_hand_back(), continued_tokens=tokens
        )
    except InvalidInput as problem:
        log.warning("partial_rollout_dropped", task=task, problem=str(problem))
        return PartialRollout(task=task, attempt=attempt, generations=())


def _push_sized_batches(partials: Iterable[PartialRollout]) -> Iterator[list[PartialRollout]]:
    """Splits the partial rollouts into batches that fit into a call."""
    batch: list[PartialRollout] = []
    size_bytes = 0
    for rollout in partials:
        batch.append(rollout)
        size_bytes += rollout.size_bytes
        if size_bytes >= PUSH_BYTES or len(batch) == PUSH_EPISODES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
