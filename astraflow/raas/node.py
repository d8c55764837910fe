"""One node in one run: joins, builds what the run needs, works, and says goodbye."""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from astraflow.client.badge import Badge
from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import FlowId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.nodes import NodeFacts, Welcome
from astraflow.raas.beats import Beats
from astraflow.raas.breaker import Breaker
from astraflow.raas.build import build_flow, build_policies, build_policy
from astraflow.raas.capacity import Capacity
from astraflow.raas.config import RaasConfig
from astraflow.raas.counters import NodeCounters
from astraflow.raas.links import Links
from astraflow.raas.membership import Membership
from astraflow.raas.orders import Orders
from astraflow.raas.outbox import Outbox
from astraflow.raas.pinned import PinnedEngines, evaluation_capacity
from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import Source, first_notice
from astraflow.raas.runner import BuiltFlow, Runner
from astraflow.raas.serving import ServedPolicies
from astraflow.raas.task_loop import TaskLoop
from astraflow.raas.weight_loop import Gaps, WeightLoop
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.origins import Origins, dialled
from astraflow.weights.puller import Puller
from astraflow.weights.signing import VerifyingKey, pinned_key
from astraflow.wire.channel import Link

log = get_logger()

FLUSH_S = 1.2
"""On leaving, finished episodes get this long to reach dataflow, and then dataflow as long to hear of the end."""


BREAK_AFTER = 16
"""So many infrastructure failures in a row, or as many as episodes run at once, and the node rests."""


class Node:
    """The parts of a node and the order of their life.

    join ──► beats ──► build engines ──► weight loops, task loop ──► told to end ──► wind down, leave
    """

    def __init__(self, config: RaasConfig, link: Link, *, badge: Badge, clock: Clock) -> None:
        """link: to dataflow, dialled with the badge."""
        self._config = config
        self._badge = badge
        self._dataflow = link.address
        self._clock = clock
        self._client = NodeDataClient(link)
        self._counters = NodeCounters()
        self._origins: Origins | None = None
        self._links = Links(lambda: self._origins.all if self._origins is not None else ())
        self._capacity = Capacity(config.capacity, clock)
        self._orders = Orders(clock, hand_back_s=config.hand_back_s)
        self._has_ended = asyncio.Event()
        self._facts = _facts(config)
        self._membership = Membership(self._client, self._facts, held=self._held, counters=self._counters, clock=clock)
        self._policies = ServedPolicies({})
        self._trusted: VerifyingKey | None = None
        self._task_loop: TaskLoop | None = None

    async def work(self) -> None:
        """Take part until the node is to end. Raises: groups of what no retry helps; RunChanged."""
        try:
            await self._work()
        except* AstraFlowError as problems:
            await self._say_goodbye(f"ended by an error: {problems.exceptions[0]}")
            raise
        finally:
            self._has_ended.set()

    async def stop(self) -> None:
        """Have `work` come to its end: what runs gets `drain_s`, then it is handed back."""
        self._orders.finish_within(self._config.drain_s, "stopped")
        if self._task_loop is None:  # nothing is held yet, and what is under construction is not worth waiting for
            await self._say_goodbye("stopped")
        else:
            await self._has_ended.wait()

    async def _work(self) -> None:
        source = notices.build(self._config.preemption)
        welcome = await self._membership.join(give_up_after_s=self._config.join_timeout_s)
        self._trusted = pinned_key(self._config.weights_key, welcome.weights_key)
        async with AsyncExitStack() as resources, asyncio.TaskGroup() as tasks:
            beats = self._beats()
            loops = [
                tasks.create_task(beats.run(welcome.beat_s)),
                tasks.create_task(self._watch_for_preemption(source)),
                tasks.create_task(self._badge.run(self._dataflow)),
            ]
            if self._config.dead_man_s:
                loops.append(tasks.create_task(beats.watch(self._config.dead_man_s)))
            flows = {spec.id: build_flow(spec) for spec in welcome.flows}
            engine = self._config.engine or welcome.engine
            self._policies = await build_policies(welcome, flows, engine, resources)
            await self._tell_engine(engine)
            self._origins = origins = await resources.enter_async_context(
                dialled(welcome.weights_address, self._config.pull, dial=self._badge.dial, clock=self._clock)
            )
            pinned = self._pinned_engines(welcome, engine, origins)
            resources.push_async_callback(pinned.close)
            self._task_loop = self._build_task_loop(flows, pinned, self._evaluation_capacity(welcome))
            loops.append(tasks.create_task(pinned.run()))
            loops += [tasks.create_task(loop.run()) for loop in self._weight_loops(origins)]
            loops.append(tasks.create_task(self._task_loop.run()))
            loops.append(tasks.create_task(self._tell_versions(beats)))
            await self._orders.ending.wait()
            loops.append(tasks.create_task(beats.beat()))  # dataflow hears of it at once, if it does not know
            await self._wind_down(self._task_loop)
            for loop in loops:
                loop.cancel()

    async def _tell_engine(self, engine: Mapping[str, Any]) -> None:
        """What the engine is, is known only now."""
        is_simulated = any(served.engine.is_simulated for served in self._policies.values())
        await self._membership.correct(replace(self._facts, engine=str(engine["kind"]), is_simulated=is_simulated))

    async def _watch_for_preemption(self, source: Source) -> None:
        notice = await first_notice(source, clock=self._clock)
        left_s = max(0.0, notice.at - self._clock.wall())
        reason = f"preempted: {notice.source} says that this machine goes away in {left_s:.0f} s"
        self._orders.be_taken_within(left_s, reason)

    async def _tell_versions(self, beats: Beats) -> None:
        """Newer weights are worth a beat of their own: dataflow may hold tasks back until it hears of them."""
        while True:
            await self._policies.changed.wait()
            self._policies.changed.clear()
            await beats.beat()

    async def _wind_down(self, task_loop: TaskLoop) -> None:
        """Lease nothing more, let what runs end until it is due, hand back the rest, leave."""
        task_loop.stop_leasing()
        await self._until_idle_or_due(task_loop)
        await _within(self._config.hand_back_s, task_loop.hand_back())
        task_loop.abandon()
        await _within(FLUSH_S, task_loop.idle())
        await self._say_goodbye(self._orders.reason)

    async def _until_idle_or_due(self, task_loop: TaskLoop) -> None:
        waits = [asyncio.ensure_future(task_loop.idle()), asyncio.ensure_future(self._orders.until_due())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _say_goodbye(self, reason: str) -> None:
        if not self._membership.is_member:
            return
        try:
            async with asyncio.timeout(FLUSH_S):
                node, is_taken = self._membership.node, self._orders.is_taken
                returned = await self._client.leave(node, reason=reason, is_taken=is_taken)
        except (AstraFlowError, TimeoutError) as problem:
            log.warning("left_without_goodbye", problem=str(problem))
        else:
            log.info("left", reason=reason, tasks_returned=returned)

    def _beats(self) -> Beats:
        return Beats(
            self._client,
            self._membership,
            held=self._held,
            versions=self._versions,
            capacity=self._capacity,
            counters=self._counters,
            links=self._links,
            orders=self._orders,
            clock=self._clock,
        )

    def _weight_loops(self, origins: Origins) -> list[WeightLoop]:
        gaps = Gaps(self._counters)

        def source(policy: PolicyId) -> Puller:
            return Puller(origins, policy, config=self._config.pull, trusted=self._trusted, clock=self._clock)

        return [
            WeightLoop(
                served,
                source,
                self._policies,
                counters=self._counters,
                gaps=gaps,
                links=self._links,
                clock=self._clock,
            )
            for served in self._policies.values()
        ]

    def _pinned_engines(self, welcome: Welcome, engine: Mapping[str, Any], origins: Origins) -> PinnedEngines:
        specs = {spec.id: spec for spec in welcome.policies}
        return PinnedEngines(
            lambda policy: build_policy(specs[policy], engine),
            lambda policy: Puller(origins, policy, config=self._config.pull, trusted=self._trusted, clock=self._clock),
            counters=self._counters,
            clock=self._clock,
            idle_s=self._config.evaluation_idle_s,
        )

    def _evaluation_capacity(self, welcome: Welcome) -> int:
        return evaluation_capacity(welcome.flows, self._config.capacity) if self._config.evaluates else 0

    def _build_task_loop(
        self, flows: Mapping[FlowId, BuiltFlow], pinned: PinnedEngines, evaluations_at_once: int
    ) -> TaskLoop:
        runner = Runner(
            flows,
            self._policies,
            pinned,
            node=lambda: self._membership.node,
            counters=self._counters,
            clock=self._clock,
            timeout_s=self._config.episode_timeout_s,
            text_share=self._config.text_share,
        )
        return TaskLoop(
            self._client,
            self._membership,
            runner,
            self._policies,
            evaluation_capacity=lambda: 0 if pinned.is_resting else evaluations_at_once,
            capacity=self._capacity,
            outbox=Outbox(),
            breaker=Breaker(max(BREAK_AFTER, self._config.capacity), self._clock),
            counters=self._counters,
        )

    def _held(self) -> tuple[TaskId, ...]:
        return self._task_loop.held() if self._task_loop is not None else ()

    def _versions(self) -> Mapping[PolicyId, Version]:
        return self._policies.versions()


def _facts(config: RaasConfig) -> NodeFacts:
    return NodeFacts(
        name=config.name,
        pool=PoolId(config.pool),
        region=config.region,
        engine=str((config.engine or {}).get("kind", "")),
        is_simulated=False,
        hardware=config.hardware,
        capacity=config.capacity,
        price_per_hour=config.price_per_hour,
        software=_release(),
    )


def _release() -> str:
    try:
        return version("astraflow")
    except PackageNotFoundError:
        return "from source"


async def _within(limit_s: float, work: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.warning("time_is_up", limit_s=limit_s)
